// Tensors out of the page: base64 of a zlib stream, half or single precision, little-endian.

/** The bytes of a base64 text. */
function decodeBase64(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Inflated bytes. */
async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** A half-precision number from its 16 bits. */
function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/**
 * Tensors by name, each a flat Float64Array.
 *
 * @param {{name: string, kind: string, shape: number[]}[]} listed in the order of the bytes.
 * @param {string} text base64.
 */
async function readTensors(listed, text) {
  const bytes = await inflate(decodeBase64(text));
  const view = new DataView(bytes.buffer);
  const tensors = {};
  let at = 0;
  for (const { name, kind, shape } of listed) {
    const count = shape.reduce((product, size) => product * size, 1);
    const values = new Float64Array(count);
    const size = kind === "<f2" ? 2 : 4;
    for (let i = 0; i < count; i++, at += size) {
      values[i] = size === 2 ? halfToNumber(view.getUint16(at, true)) : view.getFloat32(at, true);
    }
    tensors[name] = values;
  }
  return tensors;
}

/** out = weight @ input + bias, for one vector; `weight` is (out, in), row by row. */
function linear(weight, bias, input, out, inputAt = 0, outAt = 0, sizes = null) {
  const outputs = sizes ? sizes[0] : out.length;
  const inputs = sizes ? sizes[1] : input.length;
  for (let row = 0, at = 0; row < outputs; row++, at += inputs) {
    let sum = bias ? bias[row] : 0;
    for (let k = 0; k < inputs; k++) sum += weight[at + k] * input[inputAt + k];
    out[outAt + row] = sum;
  }
  return out;
}
