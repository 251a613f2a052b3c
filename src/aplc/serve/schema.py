"""What the server takes and gives, checked and described (OpenAPI) from one place."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MAX_TOP_K = 1000
# A text has something to read and no null character; the same rule for people, for validation and for OpenAPI.
_TEXT_PATTERN = r"^[^\x00]*[^\x00\s][^\x00]*$"


def _readable(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text has a null character; take it out")
    if not text.strip():
        raise ValueError("a text is empty; give at least one word")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair, which is no Unicode") from None
    return text


Text = Annotated[
    str,
    AfterValidator(_readable),
    Field(json_schema_extra={"minLength": 1, "pattern": _TEXT_PATTERN}, examples=["..."]),
]


class TagRequest(BaseModel):
    """`text` for one, or `texts` for several."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [{"required": ["text"]}, {"required": ["texts"]}],
            "examples": [{"text": "Steady-state evoked potentials in children.", "top_k": 5}],
        },
    )

    text: Text | None = Field(None, description="One text.")
    texts: list[Text] | None = Field(None, min_length=1, description="Several texts; `results` has their order.")
    top_k: int | None = Field(
        None, ge=1, le=MAX_TOP_K, strict=True, description="At most so many labels a text: 5, or 100 with a threshold."
    )
    threshold: float | None = Field(
        None, ge=0, le=1, strict=True, allow_inf_nan=False, description="Leave out labels less probable than this."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text (a string) or texts (a list of strings)")
        return self


class ExplainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: Text = Field(description="The text, as it was tagged.")
    label: str = Field(description="A label of the model.", examples=["Humans"])


class Tag(BaseModel):
    label: str
    probability: float
    cluster: str = Field(description="Where the output layer keeps the label: head, tail 1, ..., added 1, ...")


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
    probability: float = Field(description="For the part of the text that the model reads, before calibration.")
    read: int = Field(description="Characters that were looked at: those that the model reads, and at most 32,768.")
    words: list[Word]


class Label(BaseModel):
    name: str
    documents: int = Field(description="Training documents that have it.")
    cluster: str


class Labels(BaseModel):
    found: int = Field(description="Labels that match, all of them counted.")
    labels: list[Label]


class Health(BaseModel):
    status: str
    model: str
    labels: int
    version: str


class Problem(BaseModel):
    detail: str = Field(description="A sentence: what is wrong, and what to do.")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's entry for answers that are no success."""
    words = {
        401: "No token, or a wrong one.",
        404: "No such label.",
        408: "The body took too long.",
        413: "The body is too large.",
        422: "The body or a parameter is not what it should be.",
        429: "The queue is full; try again after Retry-After seconds.",
        503: "Shutting down, or too many requests at once.",
    }
    return {status: {"model": Problem, "description": words[status]} for status in statuses}
