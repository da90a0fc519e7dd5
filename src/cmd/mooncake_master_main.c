/* mooncake_master: the master under upstream's name and flags. See cmd/cmd_master.c. */
#include "cmd/cmd.h"

int main(int argc, char **argv) {
    return mc_cmd_master(argc, argv);
}
