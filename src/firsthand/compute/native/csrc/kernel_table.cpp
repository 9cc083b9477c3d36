// The kernels of one instruction set, as a table. Compiled once per set; see CMakeLists.txt.
#include "attention.hpp"
#include "experts.hpp"
#include "linear.hpp"

namespace firsthand::FIRSTHAND_ISA {

#define FIRSTHAND_QUOTE(x) #x
#define FIRSTHAND_NAME(x) FIRSTHAND_QUOTE(x)

extern const Kernels kernels;
const Kernels kernels = {
    FIRSTHAND_NAME(FIRSTHAND_ISA),
    prepare,
    linear,
    embed,
    norm,
    rotation,
    rope,
    store_rows,
    attend,
    attend_part,
    attend_merge,
    activation,
    add_rows,
    soft_cap,
    route,
    add_expert,
};

}  // namespace firsthand::FIRSTHAND_ISA
