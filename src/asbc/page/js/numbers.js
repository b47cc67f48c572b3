// Numbers: as Python writes them in messages, order statistics, and the normal distribution.

/** A number as Python's format(value, ".{digits}g") writes it: messages are the command's. */
function formatG(value, digits = 6) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  const bare = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent < -4 || exponent >= digits) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${bare(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  return bare(value.toFixed(Math.max(0, digits - 1 - exponent)));
}

/** The linearly interpolated quantile of sorted values. */
function quantile(sorted, level) {
  const place = level * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

/** The median of any values; NaN of none. */
function median(values) {
  if (values.length === 0) return NaN;
  return quantile(Float64Array.from(values).sort(), 0.5);
}

/** Mean and standard deviation (of a sample) of values. */
function moments(values) {
  let mean = 0;
  for (const value of values) mean += value / values.length;
  let square = 0;
  for (const value of values) square += (value - mean) ** 2;
  return { mean, sd: Math.sqrt(square / Math.max(values.length - 1, 1)) };
}

/** Correlation of two columns of the same length; 0 where one is constant. */
function correlation(first, second) {
  const a = moments(first);
  const b = moments(second);
  let sum = 0;
  for (let i = 0; i < first.length; i++) sum += (first[i] - a.mean) * (second[i] - b.mean);
  const scale = a.sd * b.sd * (first.length - 1);
  return scale > 0 ? sum / scale : 0;
}

/** A polynomial by Horner's rule, the coefficient of the highest power first. */
function polynomial(x, coefficients) {
  let sum = 0;
  for (let i = 0; i < coefficients.length; i++) sum = sum * x + coefficients[i];
  return sum;
}

// Cody's rational approximations of the error function (1969), numerator and denominator: near 0,
// up to 4, and beyond.
const ERF_NEAR = [
  [
    1.85777706184603153e-1, 3.1611237438705656, 1.13864154151050156e2, 3.77485237685302021e2,
    3.20937758913846947e3,
  ],
  [1, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3],
];
const ERF_MIDDLE = [
  [
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
    2.98635138197400131e2, 8.8195222124176909e2, 1.71204761263407058e3, 2.05107837782607147e3,
    1.23033935479799725e3,
  ],
  [
    1, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
  ],
];
const ERF_FAR = [
  [
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4,
  ],
  [
    1, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
    2.33520497626869185e-3,
  ],
];

/** The error function to double precision. */
function erf(x) {
  const size = Math.abs(x);
  if (size > 0.46875) return Math.sign(x) * (1 - erfcTail(size));
  const square = x * x;
  return (x * polynomial(square, ERF_NEAR[0])) / polynomial(square, ERF_NEAR[1]);
}

/** 1 - erf(x) for x above 0.46875. */
function erfcTail(x) {
  if (x > 26.5) return 0;
  const decay = Math.exp(-x * x);
  if (x <= 4) return (decay * polynomial(x, ERF_MIDDLE[0])) / polynomial(x, ERF_MIDDLE[1]);
  const inverse = 1 / (x * x);
  const ratio = polynomial(inverse, ERF_FAR[0]) / polynomial(inverse, ERF_FAR[1]);
  return (decay / x) * (1 / Math.sqrt(Math.PI) - inverse * ratio);
}

/** The normal distribution function. */
function normalCdf(x) {
  const z = x / Math.SQRT2;
  if (z < -0.46875) return erfcTail(-z) / 2;
  return 0.5 + erf(z) / 2;
}

// Wichura's algorithm AS 241 (1988) for its inverse: the centre, the tails, and far out.
const QUANTILE_CENTRE = [
  [
    2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
    1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.387132872796366608,
  ],
  [
    5.226495278852854561e3, 2.8729085735721942674e4, 3.930789580009271061e4, 2.1213794301586595867e4,
    5.3941960214247511077e3, 6.871870074920579083e2, 4.2313330701600911252e1, 1,
  ],
];
const QUANTILE_TAIL = [
  [
    7.7454501427834140764e-4, 2.27238449892691845833e-2, 2.4178072517745061177e-1, 1.27045825245236838258,
    3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734,
  ],
  [
    1.05075007164441684324e-9, 5.475938084995344946e-4, 1.51986665636164571966e-2, 1.4810397642748007459e-1,
    6.8976733498510000455e-1, 1.6763848301838038494, 2.05319162663775882187, 1,
  ],
];
const QUANTILE_FAR = [
  [
    2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.2426609473880784386e-3, 2.6532189526576123093e-2,
    2.9656057182850489123e-1, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772,
  ],
  [
    2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
    1.48753612908506148525e-2, 1.3692988092273580531e-1, 5.9983220655588793769e-1, 1,
  ],
];

/** The value with a share p of the normal distribution below it; infinite at 0 and 1. */
function normalQuantile(p) {
  if (p <= 0 || p >= 1) return p <= 0 ? -Infinity : Infinity;
  const q = p - 0.5;
  if (Math.abs(q) <= 0.425) {
    const r = 0.180625 - q * q;
    return (q * polynomial(r, QUANTILE_CENTRE[0])) / polynomial(r, QUANTILE_CENTRE[1]);
  }
  const r = Math.sqrt(-Math.log(q < 0 ? p : 1 - p));
  const [above, below] = r <= 5 ? QUANTILE_TAIL : QUANTILE_FAR;
  const x = r - (r <= 5 ? 1.6 : 5);
  const size = polynomial(x, above) / polynomial(x, below);
  return q < 0 ? -size : size;
}

/** log(1 + e^x) without overflow. */
function softplus(x) {
  return x > 30 ? x : Math.log1p(Math.exp(x));
}

/** 1 / (1 + e^-x). */
function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}
