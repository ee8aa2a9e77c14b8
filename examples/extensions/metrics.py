"""A metric of one's own: whether gradients of one step and the next agree."""

from torch.nn.functional import cosine_similarity

from planc.extend import metric


@metric("grad_cosine")
class GradCosine:
    """The cosine of a parameter's gradients in one logged step and the next; 0 in the first."""

    def __init__(self, *, parameter: str):
        self.parameter, self.last = parameter, None

    def __call__(self, step):
        before, self.last = self.last, step.gradient(self.parameter).flatten()
        return 0.0 if before is None else cosine_similarity(self.last, before, dim=0)
