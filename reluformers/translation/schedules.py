"""Learning-rate schedules of the papers that transformers' `get_scheduler` lacks."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


def get_noam_schedule(optimizer: Optimizer, *, d_model: int, warmup_steps: int) -> LambdaLR:
    r"""Schedule by which update t, from 1, has the optimizer's learning rate times

    d_model^(−½) · min(t^(−½), t · w^(−3/2))

    Args:
        optimizer: its learning rate is the factor in front.
        d_model: width of the model.
        warmup_steps: w, in updates; the rate peaks at t = w with (d_model · w)^(−½).

    Source: Vaswani et al. 2017, eq. 3; ReLA's released code, with learning rate 1 and w = 4,000.
    """
    return LambdaLR(optimizer, lambda done: d_model**-0.5 * min((done + 1) ** -0.5, (done + 1) * warmup_steps**-1.5))


class WarmupThenPlateau(LRScheduler):
    r"""Linear warm-up, then a constant rate that falls when a validation score does.

    lr = peak · min(t/w, 1) · f^r,  t = update number from 1, w = `warmup_steps`, f = `factor`,
    r = how often, once warm-up was over, a score was below the minimum of the `patience` scores before it

    All of it is in `state_dict`, so that a resumed run goes on as if it had not stopped.

    Args:
        optimizer: its learning rate is the peak.
        warmup_steps: w, in updates.
        factor: f in (0, 1).
        patience: number of earlier scores to compare with.
        min_lr: training should stop once warm-up is over and the rate is below it.

    Source: QKNorm's released code, schedule "UPFLAT_WU" (Nguyen & Salazar 2019): w = 8,000, f = 0.8, patience 3.
    """

    def __init__(
        self, optimizer: Optimizer, *, warmup_steps: int, factor: float = 0.8, patience: int = 3, min_lr: float = 1e-5
    ):
        self.warmup_steps, self.factor, self.patience, self.min_lr = warmup_steps, factor, patience, min_lr
        self.scores: list[float] = []
        self.reductions = 0
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Learning rate of the next update, one for each parameter group."""
        warmup = min((self.last_epoch + 1) / self.warmup_steps, 1.0) if self.warmup_steps else 1.0
        return [base * warmup * self.factor**self.reductions for base in self.base_lrs]

    def add_score(self, score: float) -> bool:
        """Take the newest validation score (higher is better) and say whether training should stop."""
        previous = self.scores[-self.patience :]
        self.scores.append(score)
        if self.last_epoch < self.warmup_steps:
            return False
        if len(previous) == self.patience and score < min(previous):
            self.reductions += 1
            self._last_lr = self.get_lr()
            for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
                group["lr"] = rate
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Whether training should stop."""
        return bool(self.scores) and self.last_epoch >= self.warmup_steps and max(self.get_lr()) < self.min_lr
