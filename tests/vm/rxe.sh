# Sourced by guest scripts: RDMA NICs in pairs, rxe0 - rxe1, rxe2 - rxe3, ..., each pair on a wire of its own (veth v0 - v1,
# v2 - v3, ...) with addresses 10.9.<pair>.1 and .2. Both ends are in one network namespace, where the kernel would hand
# packets over inside; the rules below send them over the wire.

rxe_pairs() {
    local pairs=$1 i a b
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
    for ((i = 0; i < pairs; i++)); do
        a=v$((2 * i)) b=v$((2 * i + 1))
        ip link add $a mtu 4300 type veth peer name $b mtu 4300
        for end in $a $b; do
            echo 0 >/proc/sys/net/ipv4/conf/$end/rp_filter
            echo 1 >/proc/sys/net/ipv4/conf/$end/accept_local
            ip rule add pref $((10 + i)) iif $end lookup local
        done
        ip addr add 10.9.$i.1/24 dev $a
        ip addr add 10.9.$i.2/24 dev $b
        ip link set $a up
        ip link set $b up
        ip rule add pref $((50 + i)) from 10.9.$i.1 to 10.9.$i.2 lookup $((100 + 2 * i))
        ip rule add pref $((50 + i)) from 10.9.$i.2 to 10.9.$i.1 lookup $((101 + 2 * i))
        ip route add 10.9.$i.2 dev $a table $((100 + 2 * i))
        ip route add 10.9.$i.1 dev $b table $((101 + 2 * i))
    done
    ip rule add pref 200 lookup local
    ip rule del pref 0
    for ((i = 0; i < 2 * pairs; i++)); do
        rdma link add rxe$i type rxe netdev v$i || return 1
    done
}
