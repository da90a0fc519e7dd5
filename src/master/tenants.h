/*
 * Tenants and their quotas: what each has charged, and what it may. Without them (m->tenants is
 * NULL) nothing here has an effect.
 */
#ifndef MC_MASTER_TENANTS_H
#define MC_MASTER_TENANTS_H

#include "master/core.h"

/* NULL with the reason in the log. */
struct mc_tenants *mc_tenants_create(const struct mc_master_config *config);
void mc_tenants_destroy(struct mc_tenants *tenants);
/* Takes `bytes` of the tenant's quota, of which `credit` will be given back when what they replace
 * goes. MC_TENANT_NOT_REGISTERED, MC_TENANT_QUOTA_EXCEEDED. */
enum mc_status mc_tenant_charge(struct mc_master *m, struct mc_str tenant, uint64_t bytes,
                                uint64_t credit);
void mc_tenant_refund(struct mc_master *m, struct mc_str tenant, uint64_t bytes);
/* What the replicas of an object have charged: those in memory. */
uint64_t mc_object_charge(struct mc_object *o);
/* How much the tenant has to give up for so many bytes more; 0 = it cannot help. */
uint64_t mc_tenant_deficit(struct mc_master *m, struct mc_str tenant, uint64_t bytes);
void mc_tenant_evicted(struct mc_master *m, struct mc_str tenant, uint64_t bytes);
void mc_tenant_rejected(struct mc_master *m, struct mc_str tenant);
/* The share of each, after the memory of the cluster has changed. */
void mc_tenants_resize(struct mc_master *m);
/* Compares the charges with what the objects say: one add for each object, then the check. */
struct mc_tenant_audit;
struct mc_tenant_audit *mc_tenant_audit_begin(struct mc_master *m);
void mc_tenant_audit_add(struct mc_tenant_audit *audit, struct mc_object *o);
void mc_tenant_audit_end(struct mc_tenant_audit *audit, struct mc_buf *report);

/* tenant_policy.c: the file of quotas, or what `store` keeps when it has functions. Unlike
 * elsewhere "default" is spelt out. */
struct mc_tenant_policy {
    char *name;
    uint64_t bytes;
};
/* MC_FILE_OPEN_FAIL, MC_FILE_READ_FAIL or MC_INVALID_PARAMS, logged with file and line. */
enum mc_status mc_tenant_policy_load(const char *path, const struct mc_quota_store *store,
                                     struct mc_tenant_policy **out, size_t *count);
/* Atomically. MC_PERSISTENT_FAIL, logged. */
enum mc_status mc_tenant_policy_save(const char *path, const struct mc_quota_store *store,
                                     const struct mc_tenant_policy *all, size_t count);
void mc_tenant_policy_free(struct mc_tenant_policy *all, size_t count);

#endif
