"""The GPT and its training once more, in plain PyTorch operations on the full weights, in float64: an oracle."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm, one_hot, scaled_dot_product_attention
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

BETAS, EPS = (0.9, 0.95), 1e-8


def decays(name: str) -> bool:
    """Whether weight decay applies: to matrices, and to nothing else."""
    return name.endswith(("weight", "experts.fc", "experts.proj"))


def joined(heads: Tensor) -> Tensor:
    """(H, in, out), split by outputs -> (in, H * out)."""
    return heads.permute(1, 0, 2).flatten(1)


class Model:
    """A GPT of these settings.

    Attributes:
        bias: of each mixture's experts, added to their scores as they are chosen.
        last, counts: of the step before and of this step, how many choices each expert had, how many of all were
            dropped, and how many nodes the tokens visited.
    """

    def __init__(self, config, arrays: dict) -> None:
        self.config = config
        self.weights = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
        sizes = len(config.sparse_layers), config.moe.experts if config.moe else 0
        self.bias = torch.zeros(sizes).double()
        self.last, self.counts = (torch.zeros(sizes[0], sizes[1] + 2).double() for _ in range(2))

    def loss(self, tokens, targets, documents=None) -> tuple[Tensor, Tensor | float]:
        """The mean cross-entropy of the targets (B, T) that count, and what the mixtures add to it for backward."""
        config, tokens, targets = self.config, torch.tensor(tokens).long(), torch.tensor(targets).long()
        w, (batch, length) = self.weights, tokens.shape
        table = w["embeddings.token.weight"].flatten(0, 1)[: config.vocab]
        positions, visible = torch.arange(length), torch.ones(length, length).tril().bool()  # (T, T) queries by keys
        if documents is not None:
            visible = visible & (torch.arange(length) >= torch.tensor(documents.first)[..., None])[:, None]
            positions = positions if documents.positions is None else torch.tensor(documents.positions)
        x, extra = table[tokens] + w["embeddings.position"][positions], 0.0
        for layer in range(config.layers):
            at = f"blocks.{layer}"
            y = self.norm(x, f"{at}.norm1") @ joined(w[f"{at}.attention.qkv.weight"])
            y = y + w[f"{at}.attention.qkv.bias"].flatten()
            q, k, v = y.view(batch, length, config.heads, 3, -1).permute(3, 0, 2, 1, 4)
            y = scaled_dot_product_attention(q, k, v, visible).transpose(1, 2).flatten(2)
            x = x + y @ w[f"{at}.attention.out.weight"].flatten(0, 1) + w[f"{at}.attention.out.bias"]
            y = self.norm(x, f"{at}.norm2")
            if layer in config.sparse_layers:
                chunks = y.split(length // config.sequence_chunks, dim=1)
                found = [self.mixture(f"{at}.mlp", config.sparse_layers.index(layer), chunk) for chunk in chunks]
                y, extra = torch.cat([one for one, _ in found], 1), extra + sum(own for _, own in found) / len(chunks)
            else:
                y = self.mlp(f"{at}.mlp", y)
            x = x + y
        logits = self.norm(x, "head.norm") @ table.T
        total = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        return total / max(1, int((targets >= 0).sum())), extra

    def norm(self, x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.gain"], self.weights[f"{name}.bias"])

    def mlp(self, name: str, x: Tensor) -> Tensor:
        w = self.weights
        hidden = x @ joined(w[f"{name}.fc.weight"]) + w[f"{name}.fc.bias"].flatten()
        return gelu(hidden, approximate="tanh") @ w[f"{name}.proj.weight"].flatten(0, 1) + w[f"{name}.proj.bias"]

    def mixture(self, name: str, number: int, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """A mixture of experts on a chunk (B, t, C), and its own losses: every expert computes every token."""
        moe, w, x = self.config.moe, self.weights, chunk.flatten(0, 1)
        logits = x @ w[f"{name}.router.weight"]
        scores = torch.sigmoid(logits) if moe.gate == "sigmoid" else logits.softmax(1)
        chosen = self.choose(scores.detach() + self.bias[number])  # (N, k)
        gates = scores.gather(1, chosen)
        gates = gates / gates.sum(1, keepdim=True) if moe.top_k > 1 else gates
        mine = one_hot(chosen, moe.experts)  # (N, k, E)
        most = moe.rows_at_most(len(x)) if moe.capacity else len(x)
        kept = mine * (mine.flatten(0, 1).cumsum(0).view(mine.shape) <= most)
        hidden = gelu(torch.einsum("nc,hecd->nhed", x, w[f"{name}.experts.fc"]), approximate="tanh")
        out = torch.einsum("nhed,hedc->nec", hidden, w[f"{name}.experts.proj"])
        y = torch.einsum("nk,nke,nec->nc", gates, kept.double(), out)
        if moe.shared_expert:
            y = y + self.mlp(f"{name}.shared", x)
        counts = mine.sum((0, 1)).double()
        visits = one_hot(chosen // (moe.experts // moe.expert_nodes), moe.expert_nodes).amax(1).sum()
        self.counts[number] += torch.cat([counts, torch.stack([(mine - kept).sum(), visits])])
        counts = counts if moe.aux_scope == "micro_batch" else self.last[number, : moe.experts]
        even = (counts / counts.sum().clamp(min=1) * (scores / scores.sum(1, keepdim=True)).mean(0)).sum()
        z = (logits.logsumexp(1) ** 2).mean()
        return y.view_as(chunk), moe.aux_loss * moe.experts * even + moe.z_loss * z

    def choose(self, ranking: Tensor) -> Tensor:
        """The k best experts of each token, on as many nodes as it may visit."""
        moe = self.config.moe
        if moe.route_nodes:
            by_node = ranking.view(len(ranking), moe.expert_nodes, -1)
            counted = min(-(-moe.top_k // moe.route_nodes), by_node.shape[2])
            nodes = by_node.topk(counted).values.sum(2).topk(moe.route_nodes).indices
            allowed = one_hot(nodes, moe.expert_nodes).sum(1).bool()[:, :, None]
            ranking = torch.where(allowed, by_node, -torch.inf).flatten(1)
        return ranking.topk(moe.top_k).indices

    def end_step(self) -> None:
        """Move the biases against the excess."""
        self.last, self.counts = self.counts, torch.zeros_like(self.counts)
        if self.config.moe:
            counts = self.last[:, : self.config.moe.experts]
            self.bias = self.bias - self.config.moe.bias_rate * torch.sign(counts - counts.mean(1, keepdim=True))


class Decayed(torch.optim.SGD):
    """SGD that decays weights as AdamW does, and not by their gradients."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight *= 1 - group["lr"] * group["decay"]
        super().step()


class LAMB(torch.optim.Optimizer):
    """Algorithm 2 of You et al. (2020), phi the identity; what does not decay has a trust ratio of 1."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                state = self.state[w] or {"step": 0, "exp_avg": torch.zeros_like(w), "exp_avg_sq": torch.zeros_like(w)}
                state["step"] += 1
                state["exp_avg"] = BETAS[0] * state["exp_avg"] + (1 - BETAS[0]) * w.grad
                state["exp_avg_sq"] = BETAS[1] * state["exp_avg_sq"] + (1 - BETAS[1]) * w.grad**2
                self.state[w] = state
                m, v = state["exp_avg"] / (1 - BETAS[0] ** state["step"]), state["exp_avg_sq"]
                u = m / ((v / (1 - BETAS[1] ** state["step"])).sqrt() + EPS) + group["decay"] * w
                w -= group["lr"] * (w.norm() / u.norm() if group["matrices"] else 1.0) * u


def optimizer_of(config, weights: dict) -> torch.optim.Optimizer:
    groups = [
        {"params": [w for name, w in weights.items() if decays(name) == decaying], "matrices": decaying}
        | {"decay" if config.optimizer != "adamw" else "weight_decay": config.weight_decay * decaying}
        for decaying in (True, False)
    ]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=BETAS, eps=EPS)
    return Decayed(groups, lr=config.lr) if config.optimizer == "sgd" else LAMB(groups, {"lr": config.lr})


def train(config, arrays: dict, batch) -> tuple[list[float], dict, Model]:
    """Train from these weights: the losses, all arrays at the end by the names of a run's, and the model.

    Args:
        config: TrainConfig.
        batch: ``batch(step, index)`` is a micro-batch, its tokens and targets, and where its documents are or None.
    """
    model = Model(config.model, arrays)
    optimizer, losses = optimizer_of(config, model.weights), []
    phases = {config.warmup: ConstantLR(optimizer, 1.0)}
    if config.lr_schedule == "cosine":
        phases = {config.warmup: CosineAnnealingLR(optimizer, config.steps - config.warmup, config.lr / 10)}
    if config.warmup:
        phases = {0: LinearLR(optimizer, 1 / (config.warmup + 1), total_iters=config.warmup)} | phases
    if decay := config.lr_decay_steps:
        phases[config.steps - decay - 1] = LinearLR(optimizer, 1.0, 0.1, total_iters=decay)
    schedule = SequentialLR(optimizer, list(phases.values()), list(phases)[1:])
    for step in range(config.steps):
        optimizer.zero_grad()
        count = config.batch_at(step) // config.micro_batch
        batches = [batch(step, index) for index in range(count)]
        targets = [int((one[1].astype(int) >= 0).sum()) for one in batches]  # that count
        every = max(1, sum(targets))
        found = [model.loss(*one) for one in batches]
        losses.append(0.0)
        for (loss, extra), mine in zip(found, targets, strict=True):
            (loss * mine / every + extra / count).backward()
            losses[-1] += loss.item() * mine / every
        torch.nn.utils.clip_grad_norm_(model.weights.values(), config.clip)
        optimizer.step()
        schedule.step()
        model.end_step()
    arrays = {name: weight.detach() for name, weight in model.weights.items()}
    for kind in ("exp_avg", "exp_avg_sq") if config.optimizer != "sgd" else ():
        arrays |= {f"{kind}.{name}": optimizer.state[weight][kind] for name, weight in model.weights.items()}
    if config.experts:
        arrays |= {"router_bias": model.bias, "router_counts": model.last}
    return losses, {name: array.numpy() for name, array in arrays.items()}, model
