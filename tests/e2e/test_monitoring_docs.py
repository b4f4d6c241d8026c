"""What manual, alerts and dashboard say of metrics is so: every name exists, and every metric is explained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tierstore.metrics import Kind, Metric

DOCS = Path(__file__).parents[2] / "docs"
MANUAL = (DOCS / "monitoring.md").read_text("utf-8")
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

SERIES = {
    f"{metric.full_name}{part}": metric
    for metric in Metric
    for part in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}
ADDED_LABELS = {"instance", "job", "le"}


def alerts() -> list[str]:
    """The expressions of the manual's alerts."""
    block = re.search(r"^```yaml\ngroups:\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE)
    assert block is not None
    return [
        " ".join(found.split())
        for found in re.findall(r"expr: (?:>-\n)?(.*?)\n +(?:for|annotations):", block[1], re.DOTALL)
    ]


EXPRESSIONS = {
    **{f"alert {number}": text for number, text in enumerate(alerts())},
    **{f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]},
}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_names_series_and_labels_that_exist(where: str) -> None:
    expression = EXPRESSIONS[where]
    named = re.findall(r"tierstore_\w+", expression)
    assert named
    assert [name for name in named if name not in SERIES] == []
    known = {label: values for name in named for label, values in SERIES[name].labels.items()}
    for label, operator, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', expression):
        assert label in known or label in ADDED_LABELS, label
        if label in known:
            values = {
                value.name.lower() if hasattr(value, "name") and not isinstance(value, str) else str(value)
                for value in known[label]
            }
            assert set(value.split("|") if operator == "=~" else [value]) <= values
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= set(known) | ADDED_LABELS


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_closes_what_it_opens(where: str) -> None:
    expression, opened = re.sub(r'"[^"]*"', '""', EXPRESSIONS[where]), []
    for character in expression:
        if character in "([{":
            opened.append(character)
        elif character in ")]}":
            assert opened.pop() == {")": "(", "]": "[", "}": "{"}[character]
    assert not opened


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_a_rate_is_of_what_only_grows_and_a_gauge_is_read_as_it_is(where: str) -> None:
    expression = EXPRESSIONS[where]
    rated = set(re.findall(r"(?:rate|increase)\((tierstore_\w+)", expression))
    for name in re.findall(r"tierstore_\w+", expression):
        assert (SERIES[name].kind is Kind.GAUGE) != (name in rated), name


def test_there_are_alerts() -> None:
    assert len(alerts()) == MANUAL.count("- alert: ") >= 10


@pytest.mark.parametrize("metric", Metric)
def test_the_manual_explains_every_metric_as_the_table_does(metric: Metric) -> None:
    labels = " ".join(f"`{label}`" for label in metric.labels)
    row = f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.meaning} |"
    assert re.sub(r"\|  \|", "| |", row) in MANUAL.splitlines()


def test_the_manual_explains_no_metric_that_is_gone() -> None:
    listed = re.findall(r"^\| `(tierstore_\w+)` \|", MANUAL, re.MULTILINE)
    assert sorted(listed) == sorted(metric.full_name for metric in Metric)


def test_panels_have_ids_of_their_own_and_lie_beside_each_other() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_panel_asks_the_data_source_that_was_chosen() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "instance"}
    for panel in PANELS:
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'instance=~"$instance"' in target["expr"]
