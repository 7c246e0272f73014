"""Schemas of features and data sets of measurements: values that refuse what does not fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up_data import NAMES, SCHEMA, array, space
from tilewright.cost_model import (
    FAILED,
    Dataset,
    DatasetError,
    Feature,
    FeatureError,
    FeatureSchema,
)


def test_schema_names_digest_and_index() -> None:
    assert SCHEMA.index("unroll") == 3
    assert SCHEMA.names() == NAMES
    reworded = FeatureSchema(1, tuple(Feature(name, "1", "other words") for name in NAMES))
    assert reworded.digest == SCHEMA.digest
    assert FeatureSchema(2, SCHEMA.features).digest != SCHEMA.digest
    assert FeatureSchema(1, SCHEMA.features[::-1]).digest != SCHEMA.digest


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0]], "got list"),
        (np.zeros((3, 7), np.float32), r"expected an \(N, 8\) float32 .* got shape \(3, 7\)"),
        (np.zeros(8, np.float32), r"got shape \(8,\)"),
        (np.zeros((3, 8)), r"got dtype float64; convert it with"),
        (np.full((2, 8), np.nan, np.float32), r"got nan in feature 'register_tile', row 0 \(16 such values"),
    ],
)
def test_schema_refuses_other_matrices(matrix: object, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        SCHEMA.check(matrix)


def test_schema_accepts_its_own_matrix() -> None:
    matrix = np.ones((2, 8), np.float32)
    assert SCHEMA.check(matrix) is matrix


def test_schema_refuses_repeated_and_unknown_names() -> None:
    with pytest.raises(FeatureError, match="names must differ, got a more than once"):
        FeatureSchema(1, (Feature("a", "1", ""), Feature("a", "2", "")))
    with pytest.raises(FeatureError, match="at least one feature"):
        FeatureSchema(1, ())
    with pytest.raises(FeatureError, match=r"expected one of the features .* got 'bytes'"):
        SCHEMA.index("bytes")


def test_dataset_is_a_value() -> None:
    times = array(1.0, 2.0)
    data = Dataset(np.zeros((2, 3), np.float32), array(1.0, 1.0), times, np.array(["w", "w"]), "d")
    times[0] = 9.0
    assert data.time_ns[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        data.time_ns[0] = 5.0
    longer = data.append(np.ones((1, 3)), [1.0], [FAILED], "a longer name")
    assert (len(data), len(longer)) == (2, 3)
    assert longer.workloads() == ("a longer name", "w")
    assert longer.ok.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("x", [[np.inf], [0.0]], r"x: expected finite features in every row, got \[inf\] in row 0"),
        ("x", [0.0, 0.0], r"x: expected an \(N, F\) matrix, got shape \(2,\)"),
        ("prior_ns", [1.0, 0.0], r"prior_ns: expected finite times > 0 in every row, got 0.0 in row 1"),
        ("time_ns", [1.0, np.nan], r"time_ns: expected times > 0, inf for a failure .* got nan in row 1"),
        ("time_ns", [1.0], r"time_ns: expected 2 values, one a row, got shape \(1,\)"),
        ("group", ["w", ""], "group: expected a workload hash"),
    ],
)
def test_dataset_refuses_bad_rows(column: str, value: object, message: str) -> None:
    columns: dict[str, object] = {"x": [[0.0], [0.0]], "prior_ns": [1.0, 1.0], "time_ns": [1.0, 1.0]}
    columns |= {"group": ["w", "w"], column: value}
    with pytest.raises(DatasetError, match=message):
        Dataset(**columns, schema_digest="d")  # type: ignore[arg-type]  # lists stand for arrays here


def test_concat_refuses_other_schemas() -> None:
    data = space(0, 1, 4)
    with pytest.raises(DatasetError, match=r"data set 1 has feature schema other, expected .* compute its features"):
        Dataset.concat([data, Dataset.empty("other", 8)])
    with pytest.raises(DatasetError, match="data set 1 has 3 features, expected 8"):
        Dataset.concat([data, Dataset.empty(SCHEMA.digest, 3)])
    with pytest.raises(DatasetError, match="at least one data set"):
        Dataset.concat([])


def test_duplicates_become_their_lower_median() -> None:
    data = Dataset(
        np.array([[5], [1], [5], [5], [1], [5], [2], [2], [-0.0], [0.0]], np.float32),
        np.ones(10),
        array(30, 7, 10, 20, FAILED, 4, FAILED, FAILED, 3, 8),
        np.array(["w", "w", "w", "w", "w", "other", "w", "w", "w", "w"]),
        "d",
    )
    unique = data.without_duplicates()
    assert unique.x[:, 0].tolist() == [5, 1, 5, 2, 0]
    assert unique.group.tolist() == ["w", "w", "other", "w", "w"]
    assert unique.time_ns.tolist() == [20, 7, 4, FAILED, 3]
    assert len(Dataset.empty("d", 1).without_duplicates()) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_removing_duplicates_twice_changes_nothing(rows: list[tuple[int, int, int]]) -> None:
    value, group, times = zip(*rows, strict=True)
    data = Dataset(
        np.array(value, np.float32)[:, None], np.ones(len(rows)), np.array(times, float),
        np.array([f"w{number}" for number in group]), "d",
    )  # fmt: skip
    once = data.without_duplicates()
    assert len(once) == len({row[:2] for row in rows})
    assert once.without_duplicates().time_ns.tolist() == once.time_ns.tolist()


def test_folds_never_split_a_workload() -> None:
    data = space(0, workloads=7, rows=10)
    held_out: list[str] = []
    for train, test in data.folds(3):
        assert not set(train.workloads()) & set(test.workloads())
        assert len(train) + len(test) == len(data)
        held_out += test.workloads()
    assert sorted(held_out) == list(data.workloads())
    assert len(list(data.folds(50))) == 7


def test_folds_need_two_workloads() -> None:
    with pytest.raises(DatasetError, match="expected at least 2 folds and 2 workloads, got 5 folds and 1 workloads"):
        next(space(0, workloads=1, rows=10).folds())
