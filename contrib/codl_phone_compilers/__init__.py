"""The compilers of phones' GPUs on a PC, which show the machine code of kernels without such a GPU.

Mesa's OpenCL compiles kernels with the compilers that drive real Adrenos and Malis, over a kernel
driver that runs nothing (Mesa's drm-shim). They lie in a folder of Debian's packages; nothing is
installed on the machine. Figures are counts of instructions and registers, not times.
"""

from codl.registry import COMMANDS, RESULTS

COMMANDS.add_lazy("kernels", "codl_phone_compilers.command:compile_kernels")
RESULTS.add_lazy("kernels", "codl_phone_compilers.report:KernelsResult")
