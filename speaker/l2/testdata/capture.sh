#!/usr/bin/env bash
# Captures the frames of captured/*.hex, each by one act of another implementation, with tcpdump, in two network
# namespaces. It needs root and the Debian packages arping, keepalived, ndisc6, iproute2, iputils-ping and tcpdump.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p captured
dir=$(mktemp -d)
host=capture-host-$$ node=capture-node-$$
jobs=() # the captures in progress
cleanup() {
  for pid in "${jobs[@]}"; do kill "$pid" 2>/dev/null || true; done
  ip netns del "$host" 2>/dev/null || true
  ip netns del "$node" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT

# The addresses of arp_test.go and ndp_test.go: the host asks, the node has the addresses.
on() { ip netns exec "$@"; }
ip netns add "$host"
ip netns add "$node"
ip -n "$node" link add eth0 address 02:00:00:00:00:01 type veth peer name eth0 address 02:00:00:00:00:09 netns "$host"
for n in "$host" "$node"; do
  on "$n" sysctl -qw net.ipv6.conf.eth0.dad_transmits=1 net.ipv6.conf.eth0.router_solicitations=1
  ip -n "$n" link set lo up
  ip -n "$n" link set eth0 up
done
ip -n "$host" addr add 203.0.113.200/24 dev eth0
ip -n "$host" addr add 2001:db8::c8/64 dev eth0 nodad
node_has() {
  ip -n "$node" addr add 203.0.113.4/24 dev eth0
  ip -n "$node" addr add 2001:db8::4/64 dev eth0 nodad
}
node_lacks() {
  ip -n "$node" addr del 203.0.113.4/24 dev eth0
  ip -n "$node" addr del 2001:db8::4/64 dev eth0
}
# The link-local addresses must be usable.
for n in "$host" "$node"; do
  while ip -n "$n" addr show dev eth0 scope link | grep -q tentative; do sleep 0.1; done
done

# capture NAME ORIGIN FILTER COMMAND... records the first frame that passes the filter while the command runs.
capture() {
  local name=$1 origin=$2 filter=$3 pid
  shift 3
  on "$host" tcpdump -i eth0 -p -c 1 -U --immediate-mode -w "$dir/$name.pcap" "$filter" 2>"$dir/log" &
  pid=$!
  jobs+=("$pid")
  until grep -q 'listening on' "$dir/log"; do sleep 0.02; done
  for _ in 1 2 3; do # the kernel may have learned the neighbor meanwhile
    "$@" >"$dir/out" 2>&1 || true
    timeout 5 tail --pid="$pid" -f /dev/null && break
  done
  ! kill -0 "$pid" 2>/dev/null || { echo "no frame for $name" >&2; cat "$dir/out" >&2; exit 1; }
  {
    {
      echo "$origin"
      tcpdump -nn -r "$dir/$name.pcap" -t -v 2>/dev/null | tr -s '\t\n ' ' ' | sed 's/ $/\n/'
    } | fold -s -w 116 | sed 's/^/# /; s/ $//'
    tcpdump -nn -r "$dir/$name.pcap" -t -xx 2>/dev/null | sed -n 's/^\t0x[0-9a-f]*: *//p' | tr -d ' '
  } >"captured/$name.hex"
  echo "$name"
}

from_host='ether src 02:00:00:00:00:09' from_node='ether src 02:00:00:00:00:01'
kernel="Linux $(uname -r | grep -o '^[0-9]*\.[0-9]*')"
type() { echo "icmp6 and ip6[40] == $1"; }
# resolve makes the host's kernel ask for an address.
resolve() {
  ip -n "$host" neigh del "$1" dev eth0 2>/dev/null || true
  on "$host" ping -c1 -W1 "$1"
}

# The kernel.
capture linux-arp-request "$kernel: ping -c1 203.0.113.4" "arp and $from_host" resolve 203.0.113.4
capture linux-ns "$kernel: ping -c1 2001:db8::4" "$(type 135) and $from_host and ip6 src 2001:db8::c8" \
  resolve 2001:db8::4
node_has
capture linux-arp-reply "$kernel: answer to ping -c1 203.0.113.4" "arp and $from_node" resolve 203.0.113.4
capture linux-na "$kernel: answer to ping -c1 2001:db8::4" "$(type 136) and $from_node" resolve 2001:db8::4
on "$node" sysctl -qw net.ipv6.conf.eth0.forwarding=1
capture linux-na-router "$kernel, forwarding=1: answer to ping -c1 2001:db8::4" "$(type 136) and $from_node" \
  resolve 2001:db8::4
on "$node" sysctl -qw net.ipv6.conf.eth0.forwarding=0
capture linux-arp-unicast "$kernel: ip neigh replace 203.0.113.4 nud probe" "arp and $from_host" \
  ip -n "$host" neigh replace 203.0.113.4 lladdr 02:00:00:00:00:01 dev eth0 nud probe
capture linux-ns-unicast "$kernel: ip neigh replace 2001:db8::4 nud probe" \
  "$(type 135) and $from_host and dst 2001:db8::4" \
  ip -n "$host" neigh replace 2001:db8::4 lladdr 02:00:00:00:00:01 dev eth0 nud probe
on "$node" sysctl -qw net.ipv4.conf.eth0.arp_notify=1
capture linux-arp-announcement "$kernel, arp_notify=1: ip link set eth0 address" "arp and $from_node" \
  ip -n "$node" link set eth0 address 02:00:00:00:00:01
on "$node" sysctl -qw net.ipv4.conf.eth0.arp_notify=0
node_lacks
capture linux-ns-dad "$kernel: duplicate address detection, ip addr add 2001:db8::4/64" \
  "$(type 135) and $from_node and ip6 src ::" \
  ip -n "$node" addr add 2001:db8::4/64 dev eth0
ip -n "$node" addr del 2001:db8::4/64 dev eth0
for conf in all eth0; do on "$node" sysctl -qw "net.ipv6.conf.$conf.enhanced_dad=0"; done # no nonce (RFC 7527)
capture linux-ns-dad-plain "$kernel, enhanced_dad=0: duplicate address detection, ip addr add 2001:db8::4/64" \
  "$(type 135) and $from_node and ip6 src ::" ip -n "$node" addr add 2001:db8::4/64 dev eth0
ip -n "$node" addr del 2001:db8::4/64 dev eth0
on "$node" sysctl -qw net.ipv6.conf.eth0.ndisc_notify=1
capture linux-na-unsolicited "$kernel, ndisc_notify=1: ip addr add 2001:db8::4/64" \
  "$(type 136) and $from_node and host 2001:db8::4" \
  ip -n "$node" addr add 2001:db8::4/64 dev eth0
on "$node" sysctl -qw net.ipv6.conf.eth0.ndisc_notify=0
ip -n "$node" addr del 2001:db8::4/64 dev eth0
ip -n "$node" link set eth0 down
capture linux-rs "$kernel: router solicitation, ip link set eth0 up" "$(type 133) and $from_node" \
  ip -n "$node" link set eth0 up

# arping of Thomas Habets.
arping=$(arping --help 2>&1 | grep -o 'ARPing [0-9.]*' | head -1 | tr A-Z a-z)
capture arping-request "$arping -c1 203.0.113.4" "arp and $from_host" on "$host" arping -i eth0 -c1 203.0.113.4
capture arping-probe "$arping -0 -c1 203.0.113.4" "arp and $from_host" on "$host" arping -i eth0 -0 -c1 203.0.113.4
capture arping-unsolicited "$arping -U -S 203.0.113.4 -c1 203.0.113.4" "arp and $from_host" \
  on "$host" arping -i eth0 -U -S 203.0.113.4 -c1 203.0.113.4
capture arping-reply "$arping -P -U -S 203.0.113.4 -c1 203.0.113.4" "arp and $from_host" \
  on "$host" arping -i eth0 -P -U -S 203.0.113.4 -c1 203.0.113.4

# ndisc6 of Rémi Denis-Courmont.
ndisc="ndisc6 $(dpkg-query -W -f '${Version}' ndisc6)"
capture ndisc6-ns "$ndisc: ndisc6 -s 2001:db8::c8 2001:db8::4 eth0" \
  "$(type 135) and $from_host and ip6 src 2001:db8::c8" \
  on "$host" ndisc6 -1 -r1 -s 2001:db8::c8 2001:db8::4 eth0

# keepalived becomes the master of an address.
keepalived="keepalived $(keepalived --version 2>&1 | grep -o 'v[0-9][0-9.]*' | head -1)"
virtual() {
  cat >"$dir/keepalived.conf" <<CONF
global_defs {
  vrrp_garp_master_repeat 1
}
vrrp_instance $1 {
  state MASTER
  interface eth0
  virtual_router_id 7
  priority 255
  virtual_ipaddress {
    $2
  }
}
CONF
  # It ends after the capture, which ends with the first frame.
  on "$node" timeout 8 keepalived -n -l -P -f "$dir/keepalived.conf" -p "$dir/$1.pid" -r "$dir/$1.vrrp"
}
while ip -n "$node" addr show dev eth0 scope link | grep -q tentative; do sleep 0.1; done
ip -n "$node" addr add 203.0.113.1/24 dev eth0
capture keepalived-garp "$keepalived: becomes the master of 203.0.113.4" "arp and $from_node and host 203.0.113.4" \
  virtual v4 203.0.113.4/24
capture keepalived-na "$keepalived: becomes the master of 2001:db8::4" \
  "$(type 136) and $from_node and host 2001:db8::4" \
  virtual v6 $'fe80::7\n2001:db8::4/64'
