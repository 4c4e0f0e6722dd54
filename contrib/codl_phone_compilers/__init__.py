"""The compilers of phones' GPUs on a PC: what they make of every kernel, without such a GPU.

Mesa's OpenCL compiles kernels with the compilers that drive real Adrenos and Malis, over a kernel
driver that runs nothing (Mesa's drm-shim). They lie in a folder of Debian's packages; nothing is
installed on the machine. Figures are static: counts of what was compiled, and no times.
"""

from codl.plugins import COMMANDS, RESULTS

COMMANDS.add_lazy("kernels", "codl_phone_compilers.command:compile_kernels")
RESULTS.add_lazy("kernels", "codl_phone_compilers.report:KernelsResult")
