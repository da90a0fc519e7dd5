/* mooncake_client: a store node under upstream's name and flags. See cmd/cmd_client.c. */
#include "cmd/cmd.h"

int main(int argc, char **argv) {
    return mc_cmd_client(argc, argv);
}
