/* The subcommands of `mooncake`, in the order of its help.
 * Adding one = one file and one line here. */
#include "cmd/cmd.h"

const struct mc_subcommand mc_subcommands[] = {
    {"up", "run a whole cluster on this machine: a master and several nodes", mc_cmd_up,
     &mc_up_options},
    {"replay", "replay a trace of LLM serving against a cluster, every byte verified",
     mc_cmd_replay, &mc_replay_options},
    {"master", "run a master", mc_cmd_master, &mc_master_option_set},
    {"node", "lend this machine's memory to a cluster", mc_cmd_node, &mc_node_options},
    {"put", "store a file as one object", mc_cmd_put, &mc_put_options},
    {"get", "write an object to a file", mc_cmd_get, &mc_get_options},
    {"ls", "list keys", mc_cmd_ls, &mc_ls_options},
    {"rm", "remove objects", mc_cmd_rm, &mc_rm_options},
    {"stat", "show where objects are and how full the nodes are", mc_cmd_stat, &mc_stat_options},
    {"drain", "empty nodes that are to leave, while everything stays readable", mc_cmd_drain,
     &mc_drain_options},
    {"top", "watch a cluster live", mc_cmd_top, &mc_top_options},
    {"bench", "measure puts and gets", mc_cmd_bench, &mc_bench_options},
    {"simulate", "show what eviction policies would hit of a trace", mc_cmd_simulate,
     &mc_simulate_options},
    {"topo", "show this machine's network cards, GPUs and drives, and how near they are",
     mc_cmd_topo, &mc_topo_options},
    {"links", "show what each rail of an engine carries and how it is", mc_cmd_links,
     &mc_links_options},
    {"explain", "say by which transport and rails a transfer would go, and why", mc_cmd_explain,
     &mc_explain_options},
    {"doctor", "check this machine and say what to change", mc_cmd_doctor, &mc_doctor_options},
};
const size_t mc_subcommand_count = MC_ARRAY_LEN(mc_subcommands);
