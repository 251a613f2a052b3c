"""Requests and answers of the API: pydantic checks them, and OpenAPI describes them, from the same classes."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MAX_TOP_K = 1000
# What `_readable` checks, as OpenAPI says it: at least one character that is not whitespace, and no null character.
_TEXT_PATTERN = r"^[^\x00]*[^\x00\s][^\x00]*$"


def _readable(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text has a null character; remove it")
    if not text.strip():
        raise ValueError("a text is empty; send at least one word")
    return _unicode(text)


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not valid Unicode") from None
    return text


Text = Annotated[
    str,
    AfterValidator(_readable),
    Field(json_schema_extra={"minLength": 1, "pattern": _TEXT_PATTERN}, examples=["..."]),
]


Part = Annotated[str, Field(min_length=1, max_length=200)]
Parts = Annotated[list[Part], Field(max_length=20)]


class TagRequest(BaseModel):
    """`text` to tag one text, or `texts` to tag several."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [{"required": ["text"]}, {"required": ["texts"]}],
            "examples": [{"text": "Steady-state evoked potentials in children.", "top_k": 5}],
        },
    )

    text: Text | None = Field(None, description="One text.")
    texts: list[Text] | None = Field(None, min_length=1, description="Several texts; `results` is in the same order.")
    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_TOP_K,
        strict=True,
        description="At most this many labels for a text: 5 by default, 100 with a threshold.",
    )
    threshold: float | None = Field(
        None, ge=0, le=1, strict=True, allow_inf_nan=False, description="Leave out labels less probable than this."
    )
    scheme: Parts = Field([], description="Only labels of one of these schemes of the model's vocabulary.")
    not_scheme: Parts = Field([], description="No label of these schemes.")
    below: Parts = Field([], description="Only these labels and narrower ones; a label, or what only one is called.")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("send either text (a string) or texts (a list of strings)")
        return self


class ExplainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: Text = Field(description="The text, as it was tagged.")
    label: str = Field(description="A label of the model.", examples=["Humans"])


def _label(name: str) -> str:
    if not name.strip() or "\n" in name or "\0" in name:
        raise ValueError("a label is empty, or has a line break or a null character")
    return _unicode(name)


LabelName = Annotated[
    str,
    AfterValidator(_label),
    Field(max_length=1000, json_schema_extra={"minLength": 1, "pattern": r"^[^\x00\n]*[^\x00\s][^\x00\n]*$"}),
]
LabelNames = Annotated[list[LabelName], Field(max_length=1000)]
Note = Annotated[str, Field(max_length=1000)]


class Correction(BaseModel):
    """What a person says of a text's labels. Labels that are in none of the lists stay open."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"text": "...", "accepted": ["Humans"], "rejected": ["Rats"], "added": ["Child"]}]
        },
    )

    text: Text = Field(description="The text, as it was tagged.")
    accepted: LabelNames = Field(default=[], description="Proposed labels that are right.")
    rejected: LabelNames = Field(default=[], description="Labels that are wrong.")
    added: LabelNames = Field(default=[], description="Labels that were missing; the model need not know them.")
    id: Note | None = Field(None, description="The document's id; a later correction with the same id replaces it.")
    reviewer: Note | None = Field(None, description="Who corrected it.")

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        seen: set[str] = set()
        for names in (self.accepted, self.rejected, self.added):
            if seen & set(names):
                raise ValueError(
                    f"the label {min(seen & set(names))[:100]!r} is in two of accepted, rejected and added"
                )
            seen |= set(names)
        return self

    def entry(self) -> dict[str, Any]:
        """What the feedback file keeps of it."""
        names = {what: list(dict.fromkeys(getattr(self, what))) for what in ("accepted", "rejected", "added")}
        notes = {what: value for what in ("id", "reviewer") if (value := getattr(self, what)) is not None}
        return {"text": self.text, **names, **notes}


class StreamedText(BaseModel):
    """One line of newline-delimited JSON."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    id: str | int | None = None
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K, strict=True)
    threshold: float | None = Field(None, ge=0, le=1, strict=True, allow_inf_nan=False)


class Tag(BaseModel):
    label: str
    name: str | None = Field(None, description="What the vocabulary calls it; absent where that is the label itself.")
    probability: float
    cluster: str | None = Field(
        description="The label's cluster in the output layer: head, tail 1, ..., or added 1, ...; null without clusters"
    )


class Tagged(BaseModel):
    tags: list[Tag] = Field(description="Best first.")


class TaggedMany(BaseModel):
    results: list[Tagged] = Field(description="One for each text, in order.")


class Word(BaseModel):
    start: int
    stop: int
    effect: float = Field(description="What these characters add to the label's log-odds.")


class Explained(BaseModel):
    label: str
    name: str | None = Field(None, description="What the vocabulary calls it; absent where that is the label itself.")
    probability: float = Field(description="For the part of the text that the model reads, calibrated as in /tag.")
    read: int = Field(description="Characters that were explained: those the model reads, and at most 32,768.")
    words: list[Word]


class Label(BaseModel):
    label: str = Field(description="What /tag, /explain and /feedback call it.")
    name: str = Field(description="What to show people.")
    matched: str = Field(description="The name that was found.")
    documents: int = Field(description="Training documents that have the label.")
    cluster: str | None


class Labels(BaseModel):
    found: int = Field(description="Number of labels that match.")
    labels: list[Label]


class Health(BaseModel):
    status: str
    model: str
    labels: int
    model_version: str = Field(description="Changes with any change of the model.")
    label_set_version: int
    version: str = Field(description="Of aplc.")
    feedback: bool = Field(description="Whether /feedback takes corrections.")
    review: bool = Field(description="Whether there is a queue of documents to review.")
    warnings: list[str] = Field(description="Sentences on drift: texts unlike those of training.")


class Stored(BaseModel):
    stored: bool
    new_labels: list[str] = Field(description="Given labels that are neither labels of the model nor names of them.")


class Review(BaseModel):
    total: int
    done: int = Field(description="How many have been reviewed.")
    position: int | None = Field(description="The next document's place in the queue; null if all are done.")
    id: str | None
    text: str | None


class Reloaded(BaseModel):
    model: str
    labels: int
    model_version: str
    label_set_version: int


class Problem(BaseModel):
    detail: str = Field(description="A sentence that says what is wrong and what to do.")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's entries for refusals with these statuses."""
    words = {
        401: "No token, or a wrong one.",
        403: "The server has no token.",
        404: "No such label, or the server was started without this.",
        408: "The body took too long to arrive.",
        409: "The new model was refused; the old one stays.",
        413: "The body is too large.",
        422: "The body or a parameter is not valid.",
        429: "The queue is full, or too many corrections came; try again after Retry-After seconds.",
        503: "Shutting down, hung, too many requests at once, or the feedback file can't be written.",
        507: "No room on the disk for the feedback file.",
    }
    return {status: {"model": Problem, "description": words[status]} for status in statuses}


def sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with a request, from pydantic's errors, without repeating its texts."""
    parts = []
    for problem in errors[:3]:
        if problem["type"] == "json_invalid":
            return f"The body is not JSON ({problem['ctx']['error']} at character {problem['loc'][-1]})."
        where = ".".join(str(place)[:40] for place in problem["loc"])
        what = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "string_unicode":
            what = "half of a surrogate pair is not valid Unicode"
        elif problem["type"] == "model_attributes_type":
            what = "must be a JSON object, sent with the header Content-Type: application/json"
        elif problem["type"] == "model_type":
            what = "must be a JSON object"
        elif problem["type"] == "extra_forbidden":
            what = "there is no such field; /docs lists the fields"
        parts.append(f"{where}: {what}" if where else what)
    return "; ".join(parts) + "."
