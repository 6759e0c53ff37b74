#!/bin/bash
# Two nodes on one Linux machine: two network namespaces, each with its own address, joined by a virtual cable.
#
#     benchmarks/two_nodes.sh RANKS_PER_NODE COMMAND...
#     benchmarks/two_nodes.sh 2 minidist train --dp 4
#
# MPICH's mpiexec starts COMMAND on both nodes; all that ranks of different nodes say to each other are TCP packets on
# that cable, and their number is printed at the end. Namespaces live as long as a process in them: nothing is left to
# remove, however the command ends. Needs ip (iproute2), and root or user namespaces.

set -e -o pipefail
[ $# -ge 2 ] || { sed -n '2,9s/^# \?//p' "$0" >&2; exit 2; }

if [ "$1" != --inside ]; then # begin again where we may create networks, and where what we mount is ours alone
    [ "$(id -u)" = 0 ] || as_root=--map-root-user
    exec unshare $as_root --net --mount --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
ranks_per_node=$2
shift 2

# ip keeps names of namespaces in /run/netns; names of hosts stand in /etc/hosts.
mount -t tmpfs tmpfs /run
printf '127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n' > /run/hosts
mount --bind /run/hosts /etc/hosts

ip netns add node0
ip netns add node1
ip link add eth0 netns node0 type veth peer name eth0 netns node1
for n in 0 1; do
    ip -n node$n link set lo up
    ip -n node$n address add 10.77.0.$((n + 1))/24 dev eth0
    ip -n node$n link set eth0 addrgenmode none up # no IPv6 address
done
for n in 0 1; do # an interface that is not up yet is one that MPI does not see
    until [ "$(ip netns exec node$n cat /sys/class/net/eth0/operstate)" = up ]; do sleep 0.02; done
done

# mpiexec calls this as it would call ssh: options, the name of the node, the command in one string.
cat > /run/enter <<'EOF'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
exec ip netns exec "$1" unshare --uts bash -c "hostname $1; ${*:2}"
EOF
chmod +x /run/enter

tell_traffic() {
    for n in 0 1; do
        bytes=$(ip netns exec node$n cat /sys/class/net/eth0/statistics/tx_bytes)
        printf "node$n sent %d bytes\n" "$bytes" >&2
    done
}
trap tell_traffic EXIT

# MPICH's other network module, UCX, sees that both nodes are one machine and goes through its memory.
export MPIR_CVAR_CH4_NETMOD=${MPIR_CVAR_CH4_NETMOD:-ofi} FI_PROVIDER=${FI_PROVIDER:-tcp}
/run/enter node0 mpiexec -launcher ssh -launcher-exec /run/enter -hosts node0,node1 -ppn "$ranks_per_node" \
    -n $((2 * ranks_per_node)) "${@@Q}"
