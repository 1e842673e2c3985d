# SPDX-License-Identifier: Apache-2.0
"""An agent that learns to bring a cart to the middle, with several actors side by side.

    python examples/python/agent.py
    torchrun --nproc-per-node 2 examples/python/agent.py

No wrapper and no process group: lockstep.torch.sync makes any function that gives a loss synchronize
what its backward pass reaches. Each rank has a world, a replay buffer and a target network of its
own. Each phase leaves other parameters of the agent without gradients.
"""

import argparse

import torch
from torch import nn

import lockstep.torch


class Agent(nn.Module):
    """A body that all heads share. `target` and `replay` belong to each rank."""

    def __init__(self, room):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.Tanh())
        self.actor = nn.Sequential(nn.Linear(32, 1), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(33, 32), nn.Tanh(), nn.Linear(32, 1))
        self.guess = nn.Linear(33, 2)  # The auxiliary loss: what the next state will be.
        self.target = nn.Sequential(nn.Linear(33, 32), nn.Tanh(), nn.Linear(32, 1))
        self.register_buffer("replay", torch.zeros(room, 6))  # State, action, reward, next state.

    def act(self, state):
        return self.actor(self.body(state).detach())

    def joined(self, state, action):
        return torch.cat([self.body(state), action], 1)


def move(state, action):
    """The cart's next state, and the reward."""
    place, speed = state[:, :1], state[:, 1:]
    speed = 0.5 * speed + 0.5 * action
    place = (place + 0.3 * speed).clamp(-2, 2)
    return torch.cat([place, speed], 1), -(place.square() + 0.1 * speed.square())


def start(number, generator):
    return torch.rand(number, 2, generator=generator) * torch.tensor([4.0, 1.0]) - torch.tensor(
        [2.0, 0.5])


def score(agent):
    """The mean reward of 64 carts over 40 moves, without noise: the same question for all ranks."""
    state, total = start(64, torch.Generator().manual_seed(99)), 0.0
    with torch.no_grad():
        for _ in range(40):
            state, reward = move(state, agent.act(state))
            total += reward.mean().item() / 40
    return total


def train(agent, steps, rank):
    generator = torch.Generator().manual_seed(rank)  # Each rank sees other carts.
    own = ("target.*", "replay")

    @lockstep.torch.sync(agent, ignore=own, phase="critic")
    def critic_loss(state, action, wanted, after):
        joined = agent.joined(state, action)
        error = nn.functional.mse_loss(agent.critic(joined), wanted)
        return error + 0.1 * nn.functional.mse_loss(agent.guess(joined), after)

    @lockstep.torch.sync(agent, ignore=own, phase="actor")
    def actor_loss(state, slope):
        return -(agent.act(state) * slope).mean()

    critics = [*agent.body.parameters(), *agent.critic.parameters(), *agent.guess.parameters()]
    first = torch.optim.Adam(critics, 0.003)
    second = torch.optim.Adam(agent.actor.parameters(), 0.003)
    room, filled, state = len(agent.replay), 0, start(8, generator)
    for step in range(steps):
        with torch.no_grad():
            noise = torch.randn(8, 1, generator=generator)
            action = (agent.act(state) + 0.3 * noise).clamp(-1, 1)
            after, reward = move(state, action)
            rows = torch.arange(filled, filled + 8) % room
            agent.replay[rows] = torch.cat([state, action, reward, after], 1)
            filled += 8
            state = start(8, generator) if step % 40 == 39 else after
        rows = torch.randint(0, min(filled, room), (64,), generator=generator)
        old, action, reward, after = agent.replay[rows].split([2, 1, 1, 2], 1)
        with torch.no_grad():
            wanted = reward + 0.6 * agent.target(agent.joined(after, agent.act(after)))
        first.zero_grad()
        critic_loss(old, action, wanted, after).backward()
        first.step()
        if step % 2 == 1:
            chosen = agent.act(old).detach().requires_grad_()
            slope, = torch.autograd.grad(agent.critic(agent.joined(old, chosen)).sum(), chosen)
            second.zero_grad()
            actor_loss(old, slope).backward()
            second.step()
        follow(agent)


def follow(agent):
    """The target network follows the critic slowly. Nothing is exchanged."""
    with torch.no_grad():
        for slow, fast in zip(agent.target.parameters(), agent.critic.parameters()):
            slow.lerp_(fast, 0.05)


def main():
    parser = argparse.ArgumentParser(description="Trains an agent.")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(1)
    session = lockstep.torch.session()
    torch.manual_seed(3)
    agent = Agent(4096)
    before = score(agent)
    train(agent, options.steps, session.rank)
    after = torch.tensor(score(agent), dtype=torch.float64)
    least, most = after.clone(), after.clone()
    session.allreduce("least", least, "min")
    session.allreduce("most", most, "max")
    assert torch.equal(least, most), "the copies of the agent differ"
    if session.rank == 0:
        print(f"{session.size} rank{'s' * (session.size > 1)}: the mean reward was {before:.3f} "
              f"and is {after.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
