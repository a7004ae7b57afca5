"""The test of a server's own model on public pictures that it did not learn from."""

from dataclasses import dataclass

from medfedvqa.evaluation.accuracy import percent

FIRST = (1, 5, 10)
"""The numbers of first results that may hold a partner: Recall@1, 5 and 10 (A. Karpathy and L. Fei-Fei, CVPR 2015)."""


@dataclass(frozen=True)
class ServerScore:
    """A server model's retrieval and answers. A model without a common space of pictures and texts has no retrieval."""

    questions: int
    """Public test questions."""
    correct: int
    """The questions that the model answers right."""
    pictures: int = 0
    """Public test pictures; 0 without retrieval."""
    captions: int = 0
    """The distinct captions of these pictures."""
    image_to_text: tuple[int, ...] = ()
    """The pictures whose caption is among the first 1, 5 and 10 of all captions."""
    text_to_image: tuple[int, ...] = ()
    """The captions with one of their pictures among the first 1, 5 and 10 of all pictures."""

    @property
    def recalls(self) -> tuple[float, ...]:
        """Recall@1, 5 and 10 from pictures to texts, then from texts to pictures, in 0..1; empty without retrieval."""
        return (
            *(hits / self.pictures for hits in self.image_to_text),
            *(hits / self.captions for hits in self.text_to_image),
        )

    @property
    def rsum(self) -> float:
        """The sum of the six recalls, in per cent, at most 600; 0 without retrieval."""
        return 100 * sum(self.recalls)

    @property
    def sentence(self) -> str:
        """The figures in words."""
        answers = f"{percent(self.correct / max(1, self.questions))} of {self.questions} questions"
        if not self.recalls:
            return f"The server's own model, on public pictures that it did not learn from: {answers}."
        recalls = [f"{percent(share)}" for share in self.recalls]
        return (
            f"The server's own model, on {self.pictures} public pictures with {self.captions} captions that it did not "
            f"learn from: Recall@1, 5, 10 from image to text {', '.join(recalls[:3])}, from text to image "
            f"{', '.join(recalls[3:])}, rsum {self.rsum:.1f}; {answers}."
        )
