// Command coredns is CoreDNS with only the plugins of a cluster's DNS server: the cloud plugins take minutes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

// The order of plugins for a query, as in CoreDNS's plugin.cfg.
func init() {
	dnsserver.Directives = []string{"health", "ready", "errors", "loadbalance", "cache", "kubernetes"}
}

func main() { coremain.Run() }
