package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/ironlb/ironlb/speaker/kube"
)

// kubeProxyInterface carries the virtual addresses of kube-proxy's ipvs mode, which are not the node's own.
const kubeProxyInterface = "kube-ipvs0"

// hostAddresses returns the addresses of this node's interfaces. Those that we take in are none of them: they are routes.
func hostAddresses() (map[netip.Addr]struct{}, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	out := map[netip.Addr]struct{}{}
	for _, i := range interfaces {
		if i.Name == kubeProxyInterface {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				out[prefix.Addr().Unmap()] = struct{}{}
			}
		}
	}
	return out, nil
}

// noteHost tells the source of the addresses of this node.
func noteHost(source *kube.Source, log *slog.Logger) {
	addrs, err := hostAddresses()
	if err != nil {
		log.Warn("the addresses of this node are not known; NodePorts stay where they are", "error", err)
		return
	}
	source.SetHost(addrs)
}
