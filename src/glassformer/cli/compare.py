"""A model's bits per byte beside those of frequencies, an n-gram model and a compressor, on the same held-out text."""

from dataclasses import dataclass

from rich.table import Table

from glassformer.evaluate import ngram_bits_per_byte, xz_bits_per_byte
from glassformer.tokenizer import Tokenizer
from glassformer.train.data import Dataset
from glassformer.train.data.meta import Split

ORDER = 5


@dataclass(frozen=True)
class Comparison:
    """Bits per byte of the same held-out text; every baseline has learnt from the same training text as the model."""

    model: float
    unigram: float
    ngram: float
    xz: float

    @classmethod
    def on(cls, dataset: Dataset, tokenizer: Tokenizer, model: float, unigram: float) -> "Comparison":
        """Add what the text itself decides to a model's score and its unigram frequencies."""
        train, held_out = (text_of(dataset, tokenizer, split) for split in ("train", "validation"))
        return cls(model, unigram, ngram_bits_per_byte(train, held_out, ORDER), xz_bits_per_byte(train, held_out))

    def table(self) -> Table:
        """One row for each predictor, with a verdict for each baseline."""
        table = Table(title="bits per byte of held-out text (fewer are better)", title_justify="left", box=None)
        table.add_column("predictor")
        table.add_column("bits per byte", justify="right")
        table.add_column("verdict")
        table.add_row("this model", f"{self.model:.3f}", "", style="bold")
        for name, bits in self.baselines().items():
            table.add_row(name, f"{bits:.3f}", verdict_on(self.model, bits))
        return table

    def baselines(self) -> dict[str, float]:
        """Their names, as a reader knows them, and bits per byte."""
        return {
            "unigram frequencies": self.unigram,
            f"order-{ORDER} n-gram (Kneser-Ney)": self.ngram,
            "xz -9e after the training text": self.xz,
        }


def verdict_on(model: float, baseline: float) -> str:
    """Whether the model is better, and by how much."""
    share = (model - baseline) / baseline
    if share < 0:
        return f"[green]beaten: {-share:.1%} fewer[/]"
    return f"[red]not beaten: {share:.1%} more[/]"


def text_of(dataset: Dataset, tokenizer: Tokenizer, name: Split) -> str:
    """The text that a split's tokens stand for, its documents one after the other."""
    split = dataset.split(name)
    return tokenizer.decode(split.read(0, split.tokens).tolist(), skip_special=True)
