"""A network as a function of flat parameters is the module it was made from."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bpcbench_torch import convnet
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvBN, ConvGN, ConvIN, ConvNN
from bpcbench_torch.resnet import ResNet18

NETWORKS = [
    ConvBN(width=4),
    ConvIN(width=4, growth=1, order="conv-first", init="torch"),
    ConvGN(width=4),
    ConvNN(width=4),
]


def flattened(module):
    return torch.cat([value.detach().flatten() for value in module.parameters()])


@pytest.fixture(params=NETWORKS, ids=lambda network: network.name)
def module(request):
    return request.param.build((1, 8, 8), 3, 0)


@pytest.fixture
def images():
    return torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_it_is_the_module(module, images):
    flat = FlatNetwork(module)
    assert flat.size == sum(p.numel() for p in module.parameters()) == len(flat.initial())
    torch.testing.assert_close(flat.initial(), flattened(module))
    torch.testing.assert_close(flat(flat.initial(), images), module.train()(images), rtol=1e-5, atol=1e-5)
    # After a step of the module's own, as its parameters are then.
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    theta = flattened(module)
    torch.testing.assert_close(flat(theta, images), module(images), rtol=1e-5, atol=1e-5)


def test_nothing_is_shared_or_kept(module, images):
    flat = FlatNetwork(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = flat(flat.initial(), images)
    flat.initial().zero_()
    flat.recomputed_statistics(flat.initial(), images)
    flat(flat.initial(), 5 * images)
    assert torch.equal(flat(flat.initial(), images), first)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with torch.no_grad():
        for value in module.parameters():
            value.zero_()
    assert torch.equal(flat(flat.initial(), images), first)


def test_gradients_are_the_modules(module, images):
    flat, labels = FlatNetwork(module), torch.arange(12) % 3
    theta = flat.initial().requires_grad_()
    x = images.clone().requires_grad_()
    ours = torch.autograd.grad(F.cross_entropy(flat(theta, x), labels), [theta, x])
    module.train()
    theirs = torch.autograd.grad(F.cross_entropy(module(x), labels), [*module.parameters(), x])
    torch.testing.assert_close(ours[0], torch.cat([g.reshape(-1) for g in theirs[:-1]]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours[1], theirs[-1], rtol=1e-4, atol=1e-6)


def test_second_derivatives(images):
    for network in NETWORKS:
        flat = FlatNetwork(network.build((1, 8, 8), 3, 0).double())
        labels = torch.arange(4) % 3
        theta, x = flat.initial().requires_grad_(), images[:4].double().requires_grad_()

        def slope(theta, x, flat=flat, labels=labels):
            (g,) = torch.autograd.grad(F.cross_entropy(flat(theta, x), labels), theta, create_graph=True)
            return g

        along = torch.randn(flat.size, dtype=torch.float64)
        ours = torch.autograd.grad(slope(theta, x), [theta, x], along)
        nudge = 1e-6
        moved = slope(theta + nudge * along, x) - slope(theta - nudge * along, x)
        torch.testing.assert_close(ours[0], moved.detach() / (2 * nudge), rtol=1e-4, atol=1e-6)


def test_vmap_over_parameters(module, images):
    flat = FlatNetwork(module)
    thetas = flat.initial() + 0.1 * torch.randn(3, flat.size)
    together = torch.func.vmap(flat, in_dims=(0, None))(thetas, images)
    torch.testing.assert_close(together, torch.stack([flat(t, images) for t in thetas]), rtol=1e-4, atol=1e-5)


def test_vmap_over_parameters_and_images(module, images):
    flat = FlatNetwork(module)
    thetas = flat.initial() + 0.1 * torch.randn(3, flat.size, generator=torch.Generator().manual_seed(1))
    batches = torch.stack([images, images.flip(0), 2 * images])
    together = torch.func.vmap(flat)(thetas, batches)
    for theta, batch, logits in zip(thetas, batches, together, strict=True):
        torch.testing.assert_close(logits, flat(theta, batch), rtol=1e-4, atol=1e-4)


def test_statistics_are_those_of_the_images(images):
    module = ConvBN(width=4, order="conv-first").build((1, 8, 8), 3, 0)
    flat = FlatNetwork(module)
    buffers = flat.recomputed_statistics(flat.initial(), images)
    assert set(buffers) == set(flat.buffers) == set(dict(module.named_buffers()))
    first = module.convs[0](images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(buffers["norms.0.running_mean"], first.mean((0, 2, 3)).detach())
    torch.testing.assert_close(buffers["norms.0.running_var"], first.var((0, 2, 3)).detach())
    # With fixed statistics a row no longer depends on its neighbours, with those of the batch it does.
    fixed = flat(flat.initial(), images, statistics=buffers)
    torch.testing.assert_close(flat(flat.initial(), images[:1], statistics=buffers), fixed[:1], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(flat(flat.initial(), images[:2]), flat(flat.initial(), images)[:2], atol=1e-3)
    assert not flat.row_wise
    assert FlatNetwork(NETWORKS[1].build((1, 8, 8), 3, 0)).row_wise


def test_wrong_sizes_are_refused(images):
    flat = FlatNetwork(NETWORKS[0].build((1, 8, 8), 3, 0))
    with pytest.raises(ValueError, match=r"must have shape \(\d+,\), got \(3,\)"):
        flat(torch.zeros(3), images)


@pytest.mark.parametrize("order", ["norm-first", "conv-first"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
@pytest.mark.parametrize("cls", [ConvBN, ConvIN, ConvGN, ConvNN])
def test_parameters_are_counted_without_building(cls, shape, order):
    network = cls(width=8, order=order)
    assert network.parameters(shape, 7) == sum(p.numel() for p in network.build(shape, 7, 0).parameters())


@pytest.mark.parametrize("network", [*NETWORKS, ResNet18(width=4)], ids=lambda network: network.name)
def test_grey_images_channels_last(network, monkeypatch):
    """All convolutions compute in the layout of the module, and the function is the same."""
    module = network.build((1, 16, 16), 3, 0).double()
    plain, flat = FlatNetwork(module), FlatNetwork(module, channels_last=True)
    images = torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert flat.channels_last == (module.memory_format is torch.channels_last)
    layouts, convolve = [], F.conv2d

    def watched(x, *args):
        layouts.append(x.stride(1) == 1 and x.shape[2] > 1)
        return convolve(x, *args)

    monkeypatch.setattr(F, "conv2d", watched)
    theta = plain.initial().requires_grad_()
    outputs = [f(theta, images) for f in (plain, flat)]
    assert set(layouts[: len(layouts) // 2]) == {False}
    assert set(layouts[len(layouts) // 2 :]) == {flat.channels_last}
    torch.testing.assert_close(outputs[0], outputs[1])
    slopes = [torch.autograd.grad(output.square().sum(), theta)[0] for output in outputs]
    torch.testing.assert_close(slopes[0], slopes[1])
    thetas = torch.stack([flat.initial(), 1.1 * flat.initial()])
    for batch, dims in ((images, (0, None)), (torch.stack([images, images.flip(0)]), (0, 0))):
        together = [torch.func.vmap(f, in_dims=dims)(thetas, batch) for f in (plain, flat)]
        torch.testing.assert_close(together[0], together[1])
    statistics = [f.recomputed_statistics(theta.detach(), images) for f in (plain, flat)]
    torch.testing.assert_close(statistics[0], statistics[1])


def test_colour_images_and_plain_layouts_are_left_as_they_are():
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    colour, contiguous = ConvBN(width=4).build((3, 8, 8), 3, 0), NETWORKS[1].build((1, 8, 8), 3, 0)
    for module, given in ((colour, images), (contiguous, images[:, :1])):
        plain, flat = FlatNetwork(module), FlatNetwork(module, channels_last=True)
        assert torch.equal(plain(plain.initial(), given), flat(flat.initial(), given))


def test_the_layout_follows_the_device(monkeypatch):
    """Where group norms copy channels last, grey images are not laid out so; the meta device plays the part of CUDA."""
    rule = convnet.memory_format
    monkeypatch.setattr(
        convnet, "memory_format", lambda kind, order, device="cpu": rule(kind, order, device.replace("meta", "cuda"))
    )
    for network, there in ((ConvIN(width=4), False), (ConvBN(width=4), True)):
        module = network.build((1, 8, 8), 3, 0)
        assert FlatNetwork(module, channels_last=True).channels_last
        assert FlatNetwork(module.to("meta"), channels_last=True).channels_last == there
