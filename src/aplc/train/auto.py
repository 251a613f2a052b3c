"""Which preset is best on this machine, said with its reason.

`both`, words and a network, is the most accurate. It takes a pretrained encoder, and hours on a CPU where the words
take minutes; so it is chosen where there is a GPU, or where the user has an encoder at hand.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from aplc.config import AUTO, Config
from aplc.console import Screen
from aplc.data.encoders import is_at_hand
from aplc.nn.distributed import world

_FETCH = "aplc encoder minilm --out minilm fetches one"


def configure(preset: str, settings: Sequence[str], screen: Screen) -> Config:
    """The configuration of a preset with changes to it, as `--set` takes them. What "auto" means here is said."""
    if preset == AUTO:
        preset, reason = choose_preset(settings)
        screen.say(f"preset: {preset} ({reason})")
    return Config.from_preset(preset).with_settings(list(settings))


def choose_preset(settings: Sequence[str] = ()) -> tuple[str, str]:
    """The name of the preset, and why."""
    encoder, has_gpu = Config.from_preset("both").model.encoder, world().device.type != "cpu"
    if any(setting.partition("=")[0].strip() == "model.encoder" for setting in settings):
        return "both", "model.encoder is given"
    if find_spec("transformers") is None:
        return "words", "pretrained encoders need transformers: pip install transformers"
    if has_gpu:
        return "both", "there is a GPU"
    if is_at_hand(encoder):
        return "both", f"the pretrained encoder {encoder} is at hand; --preset words takes a fraction of the time"
    return "words", f"no GPU, and no pretrained encoder at hand; with one both is more accurate: {_FETCH}"
