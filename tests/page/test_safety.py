"""The page asks nobody, runs nothing but its own scripts, and never takes text for HTML."""

import re

import numpy as np
import pandas as pd
import pytest

HOSTILE = [
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    '"><svg onload=window.hacked=1>',
    "{{constructor.constructor('window.hacked=1')()}}",
    "javascript:window.hacked=1",
    "=HYPERLINK(1)",
]


def test_the_policy_forbids_everything_but_the_pages_own(page_of):
    text = page_of().read_text()
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(part.split(" ", 1) for part in policy.split("; "))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/=]+'", rules["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/=]+'", rules["style-src"])
    assert rules["worker-src"] == "blob:" and "unsafe" not in policy
    assert not re.search(r"https?://(?!sumo\.dlr\.de/xsd|www\.w3\.org/2001)", text)
    assert not re.search(r"\son\w+=", re.sub(r"<script.*?</script>", "", text, flags=re.S))


def test_the_browser_enforces_it(opened):
    assert opened.evaluate("fetch('https://example.org').then(() => 'sent', () => 'blocked')") == (
        "blocked"
    )
    opened.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " { textContent: 'window.hacked = 1' })); 0"
    )
    opened.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')"
    )
    opened.wait("true")
    assert opened.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in problem for problem in opened.problems)


def test_the_page_makes_no_request_and_no_error(opened, give, make_drivers, tmp_path):
    path = tmp_path / "drivers.csv"
    make_drivers().to_csv(path, index=False)
    assert give(path) == ""
    opened.click("#tab-population")
    opened.click("#tab-play")
    # A blob is a part of the page itself: its worker.
    assert [url for url in opened.requests if not url.startswith("blob:")] == []
    assert opened.problems == []


def hostile(table: pd.DataFrame) -> pd.DataFrame:
    names = np.array(HOSTILE, dtype=object)[table["pair_id"].to_numpy() % len(HOSTILE)]
    return table.assign(
        pair_id=names, follower_id=names, recording="<b>r</b>", follower_class="<i>car</i>"
    )


def test_text_of_a_file_is_never_html(opened, give, make_drivers, tmp_path):
    path = tmp_path / "<img src=x onerror=hacked=1>.csv"
    hostile(make_drivers()).to_csv(path, index=False)
    assert give(path) == ""
    for tab in ("population", "play", "driver"):
        opened.click(f"#tab-{tab}")
    assert opened.evaluate("typeof window.hacked") == "undefined"
    shown = opened.evaluate(
        "[...document.querySelectorAll('#drivers option')].map((o) => o.textContent)"
    )
    names = sorted(text.removeprefix("⚠ ") for text in shown)
    assert names == sorted(f"<b>r</b>/{name}" for name in HOSTILE)
    assert "<b>r</b>/" in opened.text("#driver-title")
    assert opened.evaluate("document.querySelectorAll('main img, main svg, main b b').length") == 0
    assert opened.problems == []


@pytest.mark.parametrize("place", ["header", "cell"])
def test_hostile_text_in_a_message_is_text(place, opened, give, make_drivers, tmp_path):
    table = make_drivers()
    if place == "header":
        table = table.rename(columns={"gap": HOSTILE[0]})
    else:
        table = table.astype({"gap": object})
        table.loc[7, "gap"] = HOSTILE[0]
    path = tmp_path / "drivers.csv"
    table.to_csv(path, index=False)
    assert HOSTILE[0] in give(path)
    assert opened.evaluate("typeof window.hacked") == "undefined"
    assert opened.evaluate("document.querySelectorAll('main img').length") == 0
