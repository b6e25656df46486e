"""Settings of the whole process are after every public call what they were before."""

from __future__ import annotations

import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import normalign as na
from normalign._torch_compat import FLAGS, override
from normalign.geometry import ntk
from normalign.regularizers import penalised
from normalign.robustness import masking_report, minimal_radius, pgd
from tests.cases import Attention, Recurrent, cnn, mlp


def stance():
    from torch._dynamo import eval_frame

    return eval_frame._stance.stance


_compat_file = override.__wrapped__.__code__.co_filename
CUDA = torch.backends.cuda
READ = {
    "attention_fast_path": torch.backends.mha.get_fastpath_enabled,
    "flash_attention": CUDA.flash_sdp_enabled,
    "memory_efficient_attention": CUDA.mem_efficient_sdp_enabled,
    "cudnn_attention": CUDA.cudnn_sdp_enabled,
    "math_attention": CUDA.math_sdp_enabled,
    "compiler_stance": stance,
    "onednn": lambda: torch.backends.mkldnn.enabled,
    "cudnn": lambda: torch.backends.cudnn.enabled,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cuda_matmul_precision": lambda: CUDA.matmul.fp32_precision,
    "onednn_matmul_precision": lambda: torch.backends.mkldnn.matmul.fp32_precision,
    "onednn_conv_precision": lambda: torch.backends.mkldnn.conv.fp32_precision,
    "cudnn_conv_precision": lambda: torch.backends.cudnn.conv.fp32_precision,
}
# What the library has no business with.
OTHERS = {
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "default_dtype": torch.get_default_dtype,
    "grad_mode": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "threads": torch.get_num_threads,
    "warning_filters": lambda: list(warnings.filters),
    "numpy_errors": np.geterr,
}


def flags():
    return {name: read() for name, read in {**READ, **OTHERS}.items()}


def transformer():
    layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(30, 3)).eval()


X = torch.linspace(-1, 1, 4 * 5 * 6).sin().view(4, 5, 6)
Y = torch.tensor([0, 1, 2, 0])


def penalty(model, **settings):
    na.GrokAlign(0.1, **settings)(model, X)[1].backward()


CALLS = {
    "local_affine": lambda model: na.local_affine(model, X),
    "local_geometry": lambda model: na.local_geometry(model, X, Y),
    "matrix_free": lambda model: na.local_geometry(model, X, Y, method="matrix_free"),
    "layer_profile": lambda model: na.layer_profile(model, X),
    "ntk": lambda model: ntk(model, X),
    "pgd": lambda model: pgd(model, X, Y, radii=0.1, n_steps=2),
    "minimal_radius": lambda m: minimal_radius(m, X, Y, max_radius=1.0, n_steps=2),
    "masking_report": lambda m: masking_report(m, X, Y, radii=0.1, n_steps=1),
    "GrokAlign": penalty,
    "GrokAlign_input": lambda model: penalty(model, estimator="input"),
    "GrokAlign_noise": lambda model: penalty(model, estimator="noise"),
    "GrokAlign_compiled": lambda model: penalty(model, compile="eager"),
    "penalised": lambda model: penalised(
        model, X, None, na.regularizers.PenaltyForm(estimator="exact")
    ),
}
MODELS = {"transformer": transformer, "gru": lambda: Recurrent(nn.GRU).eval()}


def test_every_flag_of_the_library_is_read_here():
    assert set(READ) == set(FLAGS)


@pytest.mark.filterwarnings("ignore:GrokAlign. the model is run eagerly")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_leaves_the_flags(call, kind):
    model, before = MODELS[kind](), flags()
    if (call, kind) == ("ntk", "gru"):
        with pytest.raises(ValueError, match="layers that vmap knows"):
            CALLS[call](model)
    else:
        CALLS[call](model)
    assert flags() == before


class Failure(RuntimeError):
    pass


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_raises_leaves_the_flags(call):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            raise Failure

    model, before = Fails().eval(), flags()
    with pytest.raises(Failure):
        CALLS[call](model)
    assert flags() == before


@pytest.mark.parametrize("original", [True, False])
def test_threads_restore_the_flags_whatever_they_were(original):
    models = [build() for build in MODELS.values()]
    torch.backends.mha.set_fastpath_enabled(original)
    CUDA.enable_flash_sdp(original)
    try:
        before = flags()
        calls = [CALLS[name] for name in ("local_geometry", "pgd", "GrokAlign")]

        def work(i):
            for _ in range(4):
                calls[i % 3](models[i % 2])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert flags() == before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        CUDA.enable_flash_sdp(True)


def test_ctrl_c_while_flags_change_leaves_none_changed():
    before, lines, tracer = flags(), 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal lines
        inside = frame.f_code.co_name in ("enter", "leave", "write")
        if event == "line" and inside and frame.f_code.co_filename == _compat_file:
            lines += 1
            if lines == interrupted:
                raise KeyboardInterrupt
        return trace

    for interrupted in range(1, 1000):
        lines = 0
        sys.settrace(trace)
        try:
            with override(flash_attention=False, compiler_stance="force_eager"):
                pass
        except KeyboardInterrupt:
            pass
        else:
            break  # it has fewer lines than that
        finally:
            sys.settrace(tracer)  # that of coverage
        assert flags() == before, f"interrupted at line {interrupted} of the change"
    assert interrupted > 10


class TestOverride:
    def test_requests_that_end_out_of_order(self):
        first, second = override(flash_attention=False), override(flash_attention=False)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not CUDA.flash_sdp_enabled()
        second.__exit__(None, None, None)
        assert CUDA.flash_sdp_enabled()

    def test_the_latest_value_holds(self):
        before = torch.backends.cudnn.benchmark
        with override(cudnn_benchmark=True):
            inner = override(cudnn_benchmark=False)
            with inner:
                assert not torch.backends.cudnn.benchmark
            assert torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark == before

    def test_a_setting_that_fails_undoes_those_before_it(self):
        request = override(flash_attention=False, cudnn_benchmark="none")
        with pytest.raises(RuntimeError, match="benchmark"), request:
            pass
        assert CUDA.flash_sdp_enabled()
        with override(compiler_stance="force_eager"):
            assert stance() == "force_eager"
        assert stance() == "default"

    def test_an_unknown_name(self):
        with pytest.raises(KeyError, match="no_such_flag"), override(no_such_flag=1):
            pass


@pytest.mark.parametrize("build", [mlp, cnn, Attention])
def test_training_leaves_the_flags(build):
    before = flags()
    model = build()
    x = {"mlp": (4, 10), "cnn": (4, 2, 8, 8), "Attention": (4, 4, 8)}[build.__name__]
    na.GrokAlign(0.1)(model, torch.randn(x))[1].backward()
    assert flags() == before


def test_fits_leave_the_flags():
    machine = na.RFMClassifier(n_iter=1).fit(X.flatten(1).numpy(), Y.numpy())
    before = flags()  # imports add warning filters of their own
    machine.fit(X.flatten(1).numpy(), Y.numpy())
    assert flags() == before
