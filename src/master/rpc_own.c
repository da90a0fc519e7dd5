/*
 * The RPCs that no other master has (wire/master_rpc.h, MC_MASTER_OWN_RPC_TABLE): from argument
 * structs to the core and back.
 */
#include "master/disks.h"
#include "master/files.h"
#include "master/rpc_methods.h"

void mc_rpc_ListKeys(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_list_keys *a = args;
    struct mw_e_key_page *r = ret;
    r->error = mc_master_list(call->m, a->tenant, a->prefix, a->after, a->limit, call->arena,
                              &r->value.keys, &r->value.next);
}

void mc_rpc_TakeOffloads(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_client_flag *a = args;
    struct mw_e_vec *r = ret;
    r->error = mc_disk_heartbeat(call, a->client, a->flag, &r->value);
}

void mc_rpc_SyncDisk(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_disk_orders *r = ret;
    r->error = mc_disk_sync(call, args, &r->value);
}

void mc_rpc_TakeDeadFiles(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_dead_files *r = ret;
    mc_files_take(call, args, &r->value);
}

void mc_rpc_OnDisk(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_on_disk *a = args;
    struct mw_e_vec *r = ret;
    r->error = mc_disk_holds(call, a, &r->value);
}
