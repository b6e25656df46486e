"""The small transformer on which the paper watches centroid alignment."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normalign._errors import require, require_kind

__all__ = ["Attention", "Block", "Blocks", "Transformer"]


class TokenLinear(nn.Linear):
    """A linear layer that takes the tokens of all samples as rows of one matrix.

    The numbers are ``nn.Linear``'s. When networks are stacked by ``torch.func.vmap``,
    each then multiplies two matrices; for inputs (n, t, width) it would multiply its
    weight n times with t rows.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's outputs, (..., out), for inputs (..., in)."""
        rows = super().forward(input.flatten(end_dim=-2))
        return rows.unflatten(0, input.shape[:-1])


class Attention(nn.Module):
    """Causal softmax attention with several heads and no biases.

    Written with plain matrix products, so that every derivative exists, forward and
    backward, first and second.

    Parameters
    ----------
    width : int
        Size of a token's vector; a multiple of ``n_heads``.
    n_heads : int
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = TokenLinear(width, width, bias=False)
        self.key = TokenLinear(width, width, bias=False)
        self.value = TokenLinear(width, width, bias=False)
        self.out = TokenLinear(width, width, bias=False)

    def forward(self, x: Tensor, *, last_only: bool = False) -> Tensor:
        """Return the mixture of values each position attends to, (n, t, width).

        With ``last_only`` it is the last position's, which sees all: (n, 1, width).
        """
        asking = x[:, -1:] if last_only else x
        query, key, value = (
            layer(tokens).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer, tokens in (
                (self.query, asking), (self.key, x), (self.value, x),
            )
        )  # each (n, heads, t, width / heads)  # fmt: skip
        score = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if not last_only:
            n_tokens = x.shape[1]
            square = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=x.device)
            score = score.masked_fill(square.triu(diagonal=1), float("-inf"))
        weight = score.softmax(dim=-1)
        return self.out((weight @ value).transpose(1, 2).flatten(start_dim=2))


class Block(nn.Module):
    """Attention, then a ReLU network of one hidden layer, each added to its input.

    There is no layer normalisation, as in [1]_.

    Parameters
    ----------
    width, n_heads : int
        As for :class:`Attention`.
    hidden : int
        Neurons of the hidden layer.

    References
    ----------
    .. [1] Nanda et al., Progress measures for grokking via mechanistic
       interpretability, 2023 (arXiv 2301.05217).
    """

    def __init__(self, width: int, n_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, n_heads)
        self.mlp = nn.Sequential(
            TokenLinear(width, hidden), nn.ReLU(), TokenLinear(hidden, width)
        )

    def forward(self, x: Tensor, *, last_only: bool = False) -> Tensor:
        """Return the residual stream after the block, (n, t, width).

        With ``last_only`` it is the last position's alone, (n, 1, width), for about a
        third of the work on three tokens.
        """
        stream = x[:, -1:] if last_only else x
        stream = stream + self.attention(x, last_only=last_only)
        return stream + self.mlp(stream)


class Blocks(nn.Sequential):
    """Blocks one after the other; the last may be asked for the last position alone."""

    def forward(self, input: Tensor, *, last_only: bool = False) -> Tensor:
        """Return the residual stream, (n, t, width), or its last position."""
        for i, block in enumerate(self):
            input = block(input, last_only=last_only and i == len(self) - 1)
        return input


class Transformer(nn.Module):
    r"""A decoder without layer normalisation that answers at the last position.

    .. math:: f(t) = U\,\big[B_m \circ \dots \circ B_1 (E_t + P)\big]_{\text{last}}

    With one block, tokens ``(a, b, =)``, width 128, four heads and 512 hidden neurons
    it is the network of [1]_ for addition modulo ``n_outputs``. Tokens are integers,
    so a Jacobian is taken at ``"blocks"``: from the embedded tokens to the logits.
    The last block computes the last position alone, which is all that is read of it.
    Every matrix starts normal with variance ``1 / width`` (the unembedding
    ``1 / n_outputs``) and every bias at zero, as there.

    Parameters
    ----------
    n_tokens : int
        Size of the vocabulary.
    n_outputs : int
        Number of answers.
    context : int, default=3
        Longest sequence; there is one learned position vector for each place.
    n_layers : int, default=1
        Number of blocks.
    width, n_heads, hidden : int
        As for :class:`Block`.
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.

    Raises
    ------
    ValueError
        If a size is not positive or ``width`` is no multiple of ``n_heads``.

    References
    ----------
    .. [1] Nanda et al., Progress measures for grokking via mechanistic
       interpretability, 2023 (arXiv 2301.05217).

    Examples
    --------
    >>> network = Transformer(114, 113)
    >>> network(torch.tensor([[5, 7, 113], [0, 1, 113]])).shape
    torch.Size([2, 113])
    """

    def __init__(
        self,
        n_tokens: int,
        n_outputs: int,
        *,
        context: int = 3,
        n_layers: int = 1,
        width: int = 128,
        n_heads: int = 4,
        hidden: int = 512,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = {
            "n_tokens": n_tokens, "n_outputs": n_outputs, "context": context,
            "n_layers": n_layers, "width": width, "n_heads": n_heads, "hidden": hidden,
        }  # fmt: skip
        for name, size in sizes.items():
            require(size > 0, "Transformer", name, "positive", size)
        divides = width % n_heads == 0
        rule = f"a multiple of n_heads = {n_heads}"
        require(divides, "Transformer", "width", rule, width)

        with torch.device("meta"):  # no draw from the global generator
            self.embed = nn.Embedding(n_tokens, width)
            self.pos = nn.Parameter(torch.empty(context, width))
            blocks = [Block(width, n_heads, hidden) for _ in range(n_layers)]
            self.blocks = Blocks(*blocks)
            self.unembed = nn.Linear(width, n_outputs, bias=False)
        self.to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                variance = 1 / (n_outputs if name == "unembed.weight" else width)
                if name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.normal_(std=variance**0.5, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits at the last position, (n, n_outputs), of tokens (n, t)."""
        callee, context = "Transformer", self.pos.shape[0]
        whole = not (tokens.is_floating_point() or tokens.is_complex())
        remedy = "To differentiate, start from the embedded tokens: at='blocks'."
        require_kind(whole, callee, "tokens", "integers", tokens, remedy)
        fits = tokens.ndim == 2 and 1 <= tokens.shape[1] <= context
        rule = f"of shape (n, t) with 1 <= t <= context = {context}"
        require(fits, callee, "tokens", rule, tokens)
        embedded = self.embed(tokens)
        stream = self.blocks(embedded + self.pos[: tokens.shape[1]], last_only=True)
        return self.unembed(stream[:, -1])
