"""Adam, exactly, at the cost of the rows that a batch touches.

torch.optim.Adam moves every row of a table in every step: one without a gradient goes on moving by
its decaying moments. Here such a row is left alone until a batch reads it (`LazyAdam.catch_up`) or
all rows are wanted (`LazyAdam.flush`); then it first makes up for the steps that it has skipped,
all at once (`rmixer.train.replay`). Losses and weights are those of torch.optim.Adam up to
rounding; docs/training.md says how near.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rmixer.train.replay import ReplayTable
from rmixer.train.touched import TouchedRows, move

#: Rows that are looked at at once in a flush: it bounds the memory of it.
_FLUSHED_ROWS = 1 << 16
#: Elements, 2048 rows of 16, that catch up at once: their tensors stay in a core's cache.
_ELEMENTS_AT_ONCE = 1 << 15


class LazyAdam(TouchedRows):
    """torch.optim.Adam without weight decay, for parameters ``[rows, D]`` with sparse gradients.

    State of a parameter: ``step``; ``exp_avg`` and ``exp_avg_sq`` ``[rows, D]``, of each row after
    the step ``last`` ``[rows]`` (int32; 0: never touched). The learning rate must not change.

    Args:
        params, defaults: lr, beta1, beta2, eps, for which `rmixer.train.replay.can_replay` holds.
    """

    SHARED: ClassVar[frozenset[str]] = frozenset({"step", "last"})

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, **defaults)
        # How far a row moves is proportional to the rate, with which it is multiplied at the end.
        self._table = ReplayTable(1.0, *(defaults[name] for name in ("beta1", "beta2", "eps")))
        self._behind = False

    def update(self, param: Tensor, rows: Tensor, grad_RD: Tensor, group: dict[str, Any]) -> None:
        """See `TouchedRows.update`. The rows have caught up: they have been read."""
        self._behind = True
        state = self._state_of(param)
        state["step"] += 1
        step, beta1, beta2 = state["step"], group["beta1"], group["beta2"]
        w_RD, m_RD, v_RD = _rows_of(param, state, rows)
        m_RD.lerp_(grad_RD, 1 - beta1)
        v_RD.mul_(beta2).addcmul_(grad_RD, grad_RD, value=1 - beta2)
        root = (1 - beta2**step) ** 0.5
        move_RD = v_RD.sqrt().div_(root).add_(group["eps"])
        rates = group["lr"] if isinstance(group["lr"], tuple) else (group["lr"],)
        for k, rate in enumerate(rates):
            parts = [t[:, k] if param.dim() > 2 else t for t in (w_RD, m_RD, move_RD)]  # noqa: PLR2004
            parts[0].addcdiv_(parts[1], parts[2], value=-rate / (1 - beta1**step))
        _put(param, state, rows, (w_RD, m_RD, v_RD))

    @torch.no_grad()
    def catch_up(self, param: Tensor, rows: Tensor) -> None:
        """Let some rows, each named once, make up for the steps that they have skipped."""
        state = self.state.get(param)
        if not state:  # no step yet
            return
        at_once = max(1, _ELEMENTS_AT_ONCE // max(1, param.shape[1:].numel()))
        last_R = state["last"].index_select(0, rows)
        if isinstance(last_R, FakeTensor):
            # It has no values, only memory: that of the first ones is that of any others.
            rows, last_R = rows[:at_once], last_R[:at_once]
        else:
            late = ((last_R > 0) & (last_R < state["step"])).nonzero()[:, 0]
            if not len(late):
                return
            rows, last_R = rows[late], last_R[late]
        for start in range(0, len(rows), at_once):
            some = slice(start, start + at_once)
            values = self._caught_up(param, state, rows[some], last_R[some])
            _put(param, state, rows[some], values)

    def go_on(self, other: TouchedRows) -> None:
        """See `TouchedRows.go_on`; the table of what skipped steps do is the same for both."""
        assert isinstance(other, LazyAdam)
        self._table, self._behind = other._table, True  # noqa: SLF001 - one of its own kind

    def owes(self) -> bool:
        """Whether there was a step since the newest flush."""
        return self._behind

    def _state_of(self, param: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
            state["last"] = param.new_zeros(len(param), dtype=torch.int32)
        return state

    @torch.no_grad()
    def flush(self) -> None:
        """Let every row make up for the steps that it has skipped."""
        for group in self.param_groups:
            for param in group["params"]:
                for start in range(0, len(param), _FLUSHED_ROWS):
                    stop = min(len(param), start + _FLUSHED_ROWS)
                    self.catch_up(param, torch.arange(start, stop))
                    if isinstance(param, FakeTensor):
                        break
        self._behind = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict`; torch would make floats of the counters."""
        super().load_state_dict(state_dict)
        self._behind = True
        for index, kept in state_dict["state"].items():
            params = [param for group in self.param_groups for param in group["params"]]
            self.state[params[index]]["last"] = kept["last"].clone()

    def _caught_up(
        self, param: Tensor, state: dict[str, Any], rows: Tensor, last_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and moments of some rows after the newest step, ``[R, D]`` each."""
        step, (_, beta1, beta2, _) = state["step"], self._table.settings
        lr = self.param_groups[0]["lr"]
        w_RD, m_RD, v_RD = _rows_of(param, state, rows)
        last_R = last_R.view(-1, *(1 for _ in param.shape[1:]))
        move(w_RD, self._to_come(m_RD, v_RD, last_R, step), lr)
        skipped = (step - last_R).double()
        m_RD.mul_(torch.pow(beta1, skipped).to(m_RD.dtype))
        v_RD.mul_(torch.pow(beta2, skipped).to(v_RD.dtype))
        newest = torch.full_like(last_R[:1], step)
        move(w_RD, self._to_come(m_RD, v_RD, newest, step), lr, -1.0)
        return w_RD, m_RD, v_RD

    def _to_come(self, m_RD: Tensor, v_RD: Tensor, step_R: Tensor, newest: int) -> Tensor:
        """How far rows would still move if left alone after their step, with a rate of 1.

        F of the module `replay`; ``step_R`` has the dimensions of the moments, 1 but for the first.

        The sum of Chebyshev polynomials is Clenshaw's recurrence (DLMF 3.11(ii)).
        """
        table, top = self._table, self._table.reach(newest)
        index_R = step_R.clamp(max=top).long()
        is_fake = isinstance(m_RD, FakeTensor)  # then one turn says how much memory all take
        degree = 2 if is_fake else int(table.degrees[int(index_R.min())])
        coefficients = torch.from_numpy(table.coefficients[:, :degree])[index_R].to(m_RD.dtype)
        scale_R1 = torch.from_numpy(table.scales)[index_R].to(m_RD.dtype)
        s_RD = v_RD.sqrt()
        under_RD = s_RD + scale_R1
        y_RD = s_RD.div_(under_RD).mul_(2).sub_(1)
        twice_RD = 2 * y_RD
        new, old = torch.zeros_like(y_RD), torch.zeros_like(y_RD)
        first, *columns = coefficients.unbind(-1)
        for column in reversed(columns):
            new, old = torch.addcmul(column - old, twice_RD, new), new
        sum_RD = torch.addcmul(first - old, y_RD, new)
        return sum_RD.mul_(m_RD).div_(under_RD)


def _rows_of(param: Tensor, state: dict[str, Any], rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Copies of weights and moments of some rows."""
    w, m, v = (t.index_select(0, rows) for t in (param, state["exp_avg"], state["exp_avg_sq"]))
    return w, m, v


def _put(
    param: Tensor, state: dict[str, Any], rows: Tensor, values: tuple[Tensor, Tensor, Tensor]
) -> None:
    for table, value in zip((param, state["exp_avg"], state["exp_avg_sq"]), values, strict=True):
        table.index_copy_(0, rows, value)
    state["last"].index_fill_(0, rows, state["step"])
