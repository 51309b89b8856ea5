"""Operations: every name under which PyTorch has what rules stand for."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Operation = Callable[..., Any] | Literal["activation", "attention"]  # a torch function, or a part of the model

_CONVOLUTIONS = (F.conv1d, torch.conv1d, F.conv2d, torch.conv2d, F.conv3d, torch.conv3d)
LINEAR = (F.linear, torch.addmm, Tensor.addmm, *_CONVOLUTIONS)
SOFTMAX = (torch.softmax, Tensor.softmax, F.softmax)
ADD = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__)
SUBTRACT = (torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__)
MULTIPLY = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__)
MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
DIVIDE = (torch.div, Tensor.div, Tensor.__truediv__, torch.true_divide, Tensor.div_, Tensor.__itruediv__)
NORM = (F.layer_norm, torch.layer_norm)
GROUP_NORM = (F.group_norm, torch.group_norm)
RMS_NORM = (F.rms_norm, torch.rms_norm)
ROOT = (torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt)
SIGMOID = (torch.sigmoid, Tensor.sigmoid, F.sigmoid)
ACTIVATION = (
    *(F.gelu, F.silu, F.mish, F.hardswish, F.elu, F.selu, F.celu, F.relu, F.relu6, F.leaky_relu, F.hardtanh),
    *(torch.relu, Tensor.relu, torch.tanh, Tensor.tanh, F.tanh, torch.clamp, Tensor.clamp),
)
FUSED = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
