"""The table of records, splits, users, repeats."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor.text import collect, records, splits
from raptor.text.lengths import remark_cut
from raptor.text.problems import RecordError
from raptor.text.records import SCHEMA
from raptor.text.splits import draw_held_out, normal_split, split_of_name
from raptor.text.tables import EXACT
from tests.pipelines.directories import save_tokenizer
from tests.text.reading import put, read, texts, warned


def many(folder: Path, count: int = 400, users: int | None = None) -> Path:
    tail = "" if users is None else ",user"
    rows = [f"text {n},{n % 2}" + ("" if users is None else f",u{n % users}") for n in range(count)]
    return put(folder, "a.csv", f"text,label{tail}\n" + "\n".join(rows) + "\n")


def test_the_table_is_typed_whatever_the_source_has(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "q,p,y,s,who\na,b,1,train,7\nc,d,0,dev,8\ne,f,0,train,9\n")
    whole = read(path, text="q+p", label="y", split="s", user="who").table
    assert whole.schema == SCHEMA
    assert whole.to_pylist()[1] == {
        "text": "c",
        "text_pair": "d",
        "label": 0,
        "split": "validation",
        "user": "8",
        "completion": None,
    }
    part = read(path, text="q", label="y").table
    assert part.schema == SCHEMA
    assert part["text_pair"].null_count == part["user"].null_count == 3


def test_order_and_number_of_records_are_kept_over_many_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raptor.text import delimited

    monkeypatch.setattr(delimited, "CHUNK", 7)
    assert texts(read(many(tmp_path, 100))) == [f"text {n}" for n in range(100)]


def test_split_names_are_normalised(tmp_path: Path) -> None:
    rows = "a,0,Train\nb,1,TRAINING\nc,0,dev\nd,1,Valid\ne,1,Held-out\nf,0,testing\ng,,predict\n"
    records_ = read(put(tmp_path, "a.csv", "text,label,s\n" + rows), split="s")
    assert records_.report.splits == {"train": 2, "validation": 3, "test": 1, "unlabelled": 1}
    assert records_.held_out == "validation"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("mnli_dev_matched", "validation"),
        ("test-00001-of-00002", "test"),
        ("unsupervised", "unlabelled"),
        ("data", None),
        ("train_test", None),
        ("contest", None),
    ],
)
def test_names_of_files_mean_splits(name: str, split: str | None) -> None:
    assert split_of_name(name) == split


def test_a_value_means_a_split_as_a_whole_only() -> None:
    assert normal_split("not train") is None
    assert normal_split(" Held_Out ") == "validation"


@pytest.mark.parametrize(("value", "problem"), [("fold1", "this is no split"), ("", "the split is missing")])
def test_an_unknown_split_stops(tmp_path: Path, value: str, problem: str) -> None:
    path = put(tmp_path, "a.csv", f"text,label,s\na,0,train\nb,1,{value}\n")
    with pytest.raises(RecordError, match=f"line 3, column 's': {problem}"):
        read(path, split="s")


def test_training_must_have_records(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record is in the training split"):
        read(put(tmp_path, "a.csv", "text,label,s\na,0,test\nb,1,test\n"), split="s")


def test_test_is_the_held_out_set_without_validation(tmp_path: Path) -> None:
    header = "text,label,s\na,0,train\nb,1,train\nc,1,test\nd,0,test\n"
    assert read(put(tmp_path, "a.csv", header), split="s", held_out_fraction=0.5).held_out == "test"
    both = read(put(tmp_path, "a.csv", header + "e,1,dev\nf,0,dev\n"), split="s")
    assert both.held_out == "validation"
    assert warned(both, "2 labelled test records are kept but not used")


def test_held_out_records_are_drawn_where_none_are_named(tmp_path: Path) -> None:
    path = many(tmp_path, 2000)
    first, second = (read(path, held_out_fraction=0.25) for _ in range(2))
    for records_ in (first, second):
        assert records_.held_out == "validation"
        # Six standard deviations of the number of heads.
        assert abs(records_.report.splits["validation"] - 500) < 6 * (2000 * 0.25 * 0.75) ** 0.5
    assert first.table["split"].to_pylist() != second.table["split"].to_pylist()
    assert read(path).report.splits == {}


def test_unlabelled_records_are_not_drawn(tmp_path: Path) -> None:
    rows = "".join(f"t{n},{n % 2},train\n" for n in range(200)) + "".join(
        f"u{n},-1,test\n" for n in range(200)
    )
    records_ = read(put(tmp_path, "a.csv", "text,label,s\n" + rows), split="s", held_out_fraction=0.5)
    assert records_.report.splits["test"] == 200
    assert records_.report.labels_by_split["validation"]["0"] > 0


def test_all_records_of_a_user_are_drawn_to_one_side(tmp_path: Path) -> None:
    records_ = read(many(tmp_path, 1000, users=50), user="user", held_out_fraction=0.5)
    sides: dict[str, set[str]] = {}
    for row in records_.table.to_pylist():
        sides.setdefault(row["user"], set()).add(row["split"])
    assert all(len(found) == 1 for found in sides.values())
    assert records_.report.users == 50


def test_the_draw_is_a_coin_a_record_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record more leaves the others where they are, and no seed tells who was held out."""
    stream = np.random.default_rng(0).bytes(8 * 1000)
    monkeypatch.setattr(splits.secrets, "token_bytes", lambda count: stream[:count])
    assert (draw_held_out(1000, 0.3)[:999] == draw_held_out(999, 0.3)).all()
    monkeypatch.undo()
    source = inspect.getsource(splits)
    assert "random.seed" not in source
    assert "default_rng" not in source


def test_a_kept_key_draws_the_same_and_another_key_does_not() -> None:
    drawn = draw_held_out(1000, 0.3, b"key")
    assert (drawn == draw_held_out(1000, 0.3, b"key")).all()
    assert (drawn[:999] == draw_held_out(999, 0.3, b"key")).all()
    assert 200 < drawn.sum() < 400
    assert (drawn != draw_held_out(1000, 0.3, b"other")).any()


@given(st.floats(0, 1))
def test_the_coin_is_as_biased_as_asked(fraction: float) -> None:
    heads = draw_held_out(4000, fraction).sum()
    assert abs(heads - 4000 * fraction) <= 8 * (4000 * fraction * (1 - fraction)) ** 0.5 + 1e-9


def test_a_draw_that_leaves_a_side_empty_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = many(tmp_path, 20)
    for drawn, side in ((np.zeros, "held-out set"), (np.ones, "training set")):
        monkeypatch.setattr(records, "draw_held_out", lambda count, *_, drawn=drawn: drawn(count, dtype=bool))
        with pytest.raises(RecordError, match=f"the draw left the {side} empty"):
            read(path, held_out_fraction=0.5)


def test_a_draw_that_takes_a_whole_class_stops_without_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "a.csv", "text,label\n" + "".join(f"t{n},{n // 9}\n" for n in range(20)))
    monkeypatch.setattr(records, "draw_held_out", lambda count, *_: np.arange(count) >= 18)
    with pytest.raises(RecordError, match=r"column 'label': no training record has this label\. The draw"):
        read(path, held_out_fraction=0.5)


@pytest.mark.parametrize("name", ["1.23457E+17", "1.2345678901234568e+16", "1,5E+12", "9007199254740993.0"])
def test_users_who_are_rounded_numbers_are_refused(tmp_path: Path, name: str) -> None:
    """Several people would count as one, and none of them would be protected."""
    path = put(tmp_path, "a.tsv", f"text\tlabel\tu\na\t0\tx\nb\t1\t{name}\n")
    with pytest.raises(RecordError, match="line 3, column 'u': the user is a rounded number") as caught:
        read(path, user="u")
    assert name not in str(caught.value)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_users_in_a_column_that_cannot_tell_them_apart_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    exact = EXACT[kind]
    for last, usable in ((exact - 1, True), (exact, False)):
        numbers = pa.array([1.0, None, float(last)], pa.float64()).fill_null(2.0).cast(kind)
        table = pa.table({"text": ["a", "b", "c"], "label": [0, 1, 0], "u": numbers})
        pq.write_table(table, tmp_path / "a.parquet")
        if usable:
            found = read(tmp_path / "a.parquet", user="u").table["user"].to_pylist()
            assert found == ["1", "2", str(last)]
        else:
            with pytest.raises(RecordError, match="record 3, column 'u': the number is too large"):
                read(tmp_path / "a.parquet", user="u")


def test_users_of_many_digits_are_whole_in_text_and_json(tmp_path: Path) -> None:
    people = ["12345678901234567", "12345678901234568", "1e5", "123.0"]
    rows = "".join(f"t{n},{n % 2},{user}\n" for n, user in enumerate(people))
    assert read(put(tmp_path, "a.csv", "text,label,u\n" + rows), user="u").report.users == 4
    lines = "".join(f'{{"text": "t{n}", "label": {n}, "u": {user}}}\n' for n, user in enumerate(people[:2]))
    assert read(put(tmp_path, "a.jsonl", lines), user="u").report.users == 2
    lines = "".join(f'{{"text": "t{n}", "label": {n}, "u": {user}.0}}\n' for n, user in enumerate(people[:2]))
    with pytest.raises(RecordError, match="the user is a rounded number"):
        read(put(tmp_path, "b.jsonl", lines), user="u")


def test_users_are_needed_and_named(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "text,label,u\na,0,x\nb,1,\n")
    with pytest.raises(RecordError, match="line 3, column 'u': the user is missing"):
        read(path, user="u")
    lines = "".join(
        f'{{"text": "{n}", "label": {n % 2}, "u": {user}}}\n' for n, user in enumerate(["1", "1.0", '"x"'])
    )
    assert read(put(tmp_path, "a.jsonl", lines), user="u").table["user"].to_pylist() == ["1", "1", "x"]


def test_repeats_and_shared_records_are_counted(tmp_path: Path) -> None:
    rows = "a,0,train\na,1,train\na,0,train\nb,1,train\nb,1,train\nc,0,train\nc,0,test\nd,1,test\n"
    records_ = read(put(tmp_path, "a.csv", "text,label,s\n" + rows), split="s")
    assert records_.report.repeats == {"in_training": 3, "contradicting": 1, "shared": 1}
    assert warned(records_, "3 training records repeat")
    assert warned(records_, "1 texts stand in training with different labels")
    assert warned(records_, "1 validation or test records stand in training")


def test_pairs_are_repeated_as_pairs(tmp_path: Path) -> None:
    rows = "a,b,0\na,c,1\na,b,0\nb,a,1\n"
    report = read(put(tmp_path, "a.csv", "p,q,label\n" + rows), text="p+q").report
    assert report.repeats["in_training"] == 1


def test_one_text_for_all_stops(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="all records have the same text"):
        read(put(tmp_path, "a.csv", "text,label\na,0\na,1\na,1\n"))


def test_pairs_without_any_text_are_told_from_those_that_lack_one_side(tmp_path: Path) -> None:
    records_ = read(put(tmp_path, "a.csv", "p,q,label\na,,0\nb,c,1\n, ,1\n ,d,0\n"), text="p+q")
    assert warned(records_, "without text: 1", "line 4")
    assert warned(records_, "one of the two columns only: 2", "lines 2, 5")
    whole = read(put(tmp_path, "b.csv", "p,q,label\na,,0\nb,c,1\n"), text="p+q")
    assert not warned(whole, "without text")


def test_places_are_those_of_the_right_file(tmp_path: Path) -> None:
    put(tmp_path, "train.csv", "text,label\n" + "".join(f"t{n},{n % 2}\n" for n in range(30)))
    put(tmp_path, "test.csv", 'text,label\n"x\ny",0\nz,2\n')
    with pytest.raises(RecordError, match=r"test\.csv, line 4, column 'label'"):
        read(tmp_path)


def test_messages_hold_no_value_of_a_record(tmp_path: Path) -> None:
    """What a pipeline raises may reach a log file; a person at a terminal sees the value."""
    secret = "patient 4711"
    files = {
        "a.csv": f"text,label,s\nx,0,train\ny,{secret},test\n",
        "b.csv": f"text,label,s\nx,0,train\ny,1,{secret}\n",
        "c.jsonl": f'{{"text": "x", "label": 0, "s": "train"}}\n{{"text": "y", "label": ["{secret}"], "s": "train"}}\n',
        "d.jsonl": f'{{"text": "x", "label": 0, "s": "train"}}\n{{"text": "{secret}", "label\n',
        "e.csv": f"{secret},1,train\n",
    }
    for name, content in files.items():
        with pytest.raises(RecordError) as caught:
            read(put(tmp_path, name, content), split="s")
        assert "4711" not in str(caught.value), name
        assert "4711" not in repr(caught.value), name
        assert "4711" in caught.value.terminal, name
        assert caught.value.__suppress_context__ or caught.value.__context__ is None, name


def test_the_first_places_of_an_oddity_are_named(tmp_path: Path) -> None:
    rows = "".join(f",{n % 2}\n" for n in range(8))
    path = put(tmp_path, "a.csv", "text,label\na,0\nb,1\n" + rows)
    assert warned(read(path), f"{collect.EMPTY}: 8 ({path}, lines 4, 5, 6, 7, 8 and 3 more).")


def test_texts_that_will_be_cut_are_counted(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    table = read(put(tmp_path, "a.csv", "text,label\na b c,0\na b c d,1\n")).table
    assert remark_cut(table, tmp_path / "tokenizer.json", 4) == [
        "1 of 2 records are longer than 4 tokens and are cut (ingestion.max_length)."
    ]
    assert remark_cut(table, tmp_path / "tokenizer.json", 5) == []
    assert remark_cut(table, tmp_path / "nowhere.json", 2) == []


def test_many_records_are_sampled_for_their_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raptor.text import lengths

    monkeypatch.setattr(lengths, "SAMPLE", 50)
    save_tokenizer(tmp_path)
    rows = "".join(f"{'a ' * 9 if n % 4 == 0 else 'b'},{n % 2}\n" for n in range(1000))
    table = read(put(tmp_path, "a.csv", "text,label\n" + rows)).table
    [warning] = remark_cut(table, tmp_path / "tokenizer.json", 4)
    assert warning.startswith("About ")
