"""Requests and answers of the API: pydantic checks them, and OpenAPI describes them, from the same classes."""

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
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair, which is not valid Unicode") from None
    return text


Text = Annotated[
    str,
    AfterValidator(_readable),
    Field(json_schema_extra={"minLength": 1, "pattern": _TEXT_PATTERN}, examples=["..."]),
]


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

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("send either text (a string) or texts (a list of strings)")
        return self


class ExplainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: Text = Field(description="The text, as it was tagged.")
    label: str = Field(description="A label of the model.", examples=["Humans"])


class Tag(BaseModel):
    label: str
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
    probability: float = Field(description="For the part of the text that the model reads, calibrated as in /tag.")
    read: int = Field(description="Characters that were explained: those the model reads, and at most 32,768.")
    words: list[Word]


class Label(BaseModel):
    name: str
    documents: int = Field(description="Training documents that have the label.")
    cluster: str | None


class Labels(BaseModel):
    found: int = Field(description="Number of labels that match.")
    labels: list[Label]


class Health(BaseModel):
    status: str
    model: str
    labels: int
    version: str


class Problem(BaseModel):
    detail: str = Field(description="A sentence that says what is wrong and what to do.")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's entries for refusals with these statuses."""
    words = {
        401: "No token, or a wrong one.",
        404: "No such label.",
        408: "The body took too long to arrive.",
        413: "The body is too large.",
        422: "The body or a parameter is not valid.",
        429: "The queue is full; try again after Retry-After seconds.",
        503: "Shutting down, or too many requests at once.",
    }
    return {status: {"model": Problem, "description": words[status]} for status in statuses}
