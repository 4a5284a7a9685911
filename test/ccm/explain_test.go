package ccm

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/ironlb/ironlb/test/eventually"
)

// TestExplain: for each cause before the nodes, kubectl ironlb explain names it and what to do, from the objects that
// the API server and ironlb-ccm leave. No speaker runs here: an address that is placed is not reported.
func TestExplain(t *testing.T) {
	f := use(t, "explained")
	f.must(f.AddNodes(f.ctx, 1))
	f.pool("full", "192.0.2.10")
	f.pool("silent", "192.0.2.40")
	f.pool("nowhere", "192.0.2.50")
	f.apply(`
{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: quota}, spec: {addresses: [192.0.2.20-192.0.2.21], namespaceQuota: 1}}
---
{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: rests}, spec: {addresses: [192.0.2.30], reuseAfter: 1h}}
---
{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: others}, spec: {addresses: [192.0.2.60], serviceAllocation: {namespaces: [shop]}}}
---
{apiVersion: ironlb.io/v1alpha1, kind: L2Advertisement, metadata: {name: some}, spec: {ipAddressPools: [full, quota, rests]}}
---
{apiVersion: ironlb.io/v1alpha1, kind: L2Advertisement, metadata: {name: nowhere}, spec: {ipAddressPools: [nowhere], nodeSelectors: [{matchLabels: {rack: none}}]}}
`)
	ccm := f.start(alone)
	service := func(name, annotations, spec string) {
		f.apply(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: explained, annotations: {%s}},
			spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]%s}}`, name, annotations, spec))
	}
	explained := func(name, cause, step string) {
		t.Helper()
		first, want := regexp.MustCompile(`^Service explained/`+name+`[^:]*: `+cause+`\n`), regexp.MustCompile(`(?m)^  `+step)
		eventually.Nil(t, patience, "kubectl ironlb explain svc "+name, func(ctx context.Context) error {
			out, err := f.Plugin(ctx, "explain", "svc", name, "-n", "explained")
			if err != nil {
				return err
			}
			return eventually.Unless(first.MatchString(out) && want.MatchString(out), "want %s and %s, got:\n%s", first, want, out)
		})
	}
	service("first", "ironlb.io/ip-pool: full", "")
	explained("first", "Problem NotReported", `Endpoints +80/TCP +Problem +NoEndpoint: no ready IPv4 endpoint, .*selector "app=web"`)
	service("second", "ironlb.io/ip-pool: full", "")
	explained("second", "Problem PoolExhausted", `Pool +full +Info +PoolExhausted: `)
	service("shares", `ironlb.io/ips: 192.0.2.10, ironlb.io/sharing-key: k`, "")
	explained("shares", "Problem SharingRefused", `Address +- +Problem +SharingRefused: .*explained/first`)
	service("one", "ironlb.io/ip-pool: quota", "")
	explained("one", "Problem NotReported", `Owner `)
	service("two", "ironlb.io/ip-pool: quota", "")
	explained("two", "Problem QuotaReached", `Pool +quota +Info +QuotaReached: `)
	service("barred", "ironlb.io/ip-pool: others", "")
	explained("barred", "Problem PoolNotAdmitting", `Pool +others +Info +PoolNotAdmitting: `)
	service("unknown", "ironlb.io/ip-pool: nothing", "")
	explained("unknown", "Problem PoolNotFound", `Address +- +Problem +PoolNotFound: .*nothing`)
	service("six", "", ", ipFamilies: [IPv6]")
	explained("six", "Problem NoPool", `Pool +full +Info +PoolLacksFamily: `)
	service("foreign", "", ", loadBalancerClass: example.com/other")
	explained("foreign", "Problem OtherClass", `Class +example.com/other +Problem +OtherClass: IronLB serves the class ironlb.io/lb only`)
	service("rested", "ironlb.io/ip-pool: rests", "")
	explained("rested", "Problem NotReported", `Address +- +OK +Allocated: Allocated 192.0.2.30`)
	f.end("rested")
	service("waits", "ironlb.io/ip-pool: rests", "")
	explained("waits", "Problem PoolExhausted", `Pool +rests +Info +CoolingDown: `)
	service("silent", "ironlb.io/ip-pool: silent", "")
	explained("silent", "Problem NotAdvertised", `Advertisement +192.0.2.40 +Problem +NotAdvertised: .*L2Advertisement some does not select pool silent`)
	service("placed", "ironlb.io/ip-pool: nowhere", "")
	explained("placed", "Problem NoNodeMatches", `Owner +192.0.2.50 +Problem +NoNodeMatches: .*nodeSelectors`)
	service("outside", `ironlb.io/ips: 192.0.2.99`, "")
	explained("outside", "Problem AddressOutsidePools", `Address +- +Problem +AddressOutsidePools: `)
	f.stop(ccm)
	service("late", "", "")
	if out, err := f.Plugin(f.ctx, "explain", "svc", "late", "-n", "explained"); err != nil || !regexp.MustCompile(`Problem NotProcessed\n`).MatchString(out) {
		t.Errorf("without ironlb-ccm (%v):\n%s", err, out)
	}
}
