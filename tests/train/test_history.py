"""The log of a run and its picture."""

from pathlib import Path

import pytest

from glassformer.errors import DataError
from glassformer.train.history import History, Row, draw_losses, read_log


def test_rows_come_back_as_they_were_to_the_last_bit(tmp_path: Path):
    history = History(tmp_path / "log.csv", step=0)
    rows = [Row(1, 64, 0.1 + 0.2, 1e-17, 3e-4, 1000.0, 0.5), Row(2, 128, validation_loss=1 / 3, bits_per_byte=2 / 3)]
    rows.append(Row(3, 192, load=(1 / 3 + 1, 1.25)))
    for row in rows:
        history.add(row)
    history.close()
    assert read_log(tmp_path / "log.csv") == rows


def test_going_on_drops_what_came_after_the_checkpoint(tmp_path: Path):
    history = History(tmp_path / "log.csv", step=0)
    for step in range(1, 6):
        history.add(Row(step, step * 64, loss=float(step)))
    history.close()
    again = History(tmp_path / "log.csv", step=3)
    again.add(Row(4, 256, loss=9.0))
    again.close()
    assert [(row.step, row.loss) for row in read_log(tmp_path / "log.csv")] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 9.0)]


def test_a_line_torn_by_a_crash_is_an_error_that_says_what_to_do(tmp_path: Path):
    (tmp_path / "log.csv").write_text("step,tokens,loss\n1,64,1.5\n2,x", encoding="utf-8")
    with pytest.raises(DataError, match=r"log\.csv: not a log of a run"):
        History(tmp_path / "log.csv", step=2)


def test_losses_are_drawn(tmp_path: Path):
    rows = [Row(step, step * 64, loss=3.0 / step) for step in range(1, 50)]
    draw_losses([*rows, Row(49, 49 * 64, validation_loss=0.2)], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_gets_the_same_numbers(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    history = History(tmp_path / "log.csv", step=0, board=tmp_path / "board")
    for step in (1, 2, 3):
        history.add(Row(step, step * 64, loss=1.0 / step))
    history.close()
    events = accumulator.EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 0.333333)]
