"""Which preset is best on this machine, and why.

`both`, words and a network, is the most accurate. It takes a pretrained encoder, and on a CPU about an hour where the
words take minutes; so it is chosen where there is a GPU, or where the user has the encoder at hand.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from aplc.config import AUTO, Config
from aplc.console import Screen
from aplc.data.encoders import is_at_hand
from aplc.errors import needs
from aplc.files import read_json
from aplc.nn.distributed import world
from aplc.store.safety import RUN_FILE


def configure(preset: str, settings: Sequence[str], screen: Screen, *, resumed: Path | None = None) -> Config:
    """The configuration of a preset with changes to it, as `--set` takes them. Prints what "auto" chose, and why.

    A run that is `resumed` keeps the configuration it was started with, even where "auto" would now choose another.
    """
    if preset != AUTO:
        return Config.from_preset(preset).with_settings(list(settings))
    if resumed and (resumed / RUN_FILE).is_file():
        screen.say(f"preset: as {resumed} was started with")
        started = Config.from_dict(read_json(resumed / RUN_FILE).get("config", {}), source=str(resumed / RUN_FILE))
        return started.with_settings(list(settings))
    preset, reason = choose_preset(settings)
    screen.say(f"preset: {preset} ({reason})")
    config = Config.from_preset(preset)
    if _has_gpu() and config.train.max_documents:
        config = config.with_settings(["train.max_documents=0"])  # a limit for CPUs
    return config.with_settings(list(settings))


def choose_preset(settings: Sequence[str] = ()) -> tuple[str, str]:
    """The name of the preset, and why."""
    given = {setting.partition("=")[0].strip() for setting in settings}
    both = Config.from_preset("both")
    if "model.kind" in given:
        kind = both.with_settings(list(settings)).model.kind
        return ("words" if kind == "words" else "both"), "model.kind is given"
    if "model.encoder" in given:
        return "both", "model.encoder is given"
    if find_spec("transformers") is None:
        return "words", needs("preset both", "transformers")
    if _has_gpu():
        return "both", "there is a GPU"
    encoder = both.model.encoder
    if is_at_hand(encoder):
        return "both", f"the pretrained encoder {encoder} is at hand; --preset words takes a fraction of the time"
    fetch = f"aplc encoder {encoder} --out {encoder}"
    return "words", f"no GPU, and no pretrained encoder at hand; with one, both is more accurate: {fetch}"


def _has_gpu() -> bool:
    return world().device.type != "cpu"
