package ccm

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/test/ccm/rig"
)

// TestKinds: unsupported values are refused at admission, with an error that names the field and the fix.
func TestKinds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r := rig.Start(t, rig.Config{})
	for _, tt := range []struct{ kind, spec, refused string }{
		{"L2Advertisement", `{}`, ""},
		{"L2Advertisement", `{ipAddressPools: [web, a.b-c], ipAddressPoolSelectors: [{matchLabels: {tier: gold}}, {}],
			serviceSelectors: [{matchExpressions: [{key: app, operator: Exists}]}], nodeSelectors: [{matchLabels: {rack: a}}], interfaces: [eth0, vlan.7],
			preferredNodeSelectors: [{weight: 1, preference: {matchLabels: {rack: a}}}, {weight: 100, preference: {matchExpressions: [{key: old, operator: DoesNotExist}]}}]}`, ""},
		{"L2Advertisement", `{ipAddressPools: [Web]}`, "spec.ipAddressPools[0]: Invalid value: \"Web\": is no name that an IPAddressPool can have"},
		{"L2Advertisement", `{interfaces: [lo]}`, "spec.interfaces[0]: Invalid value: \"lo\": has no neighbours: name the interface towards the clients"},
		{"L2Advertisement", `{interfaces: [a/b]}`, "is not an interface name"},
		{"L2Advertisement", `{preferredNodeSelectors: [{weight: 0, preference: {matchLabels: {rack: a}}}]}`, "spec.preferredNodeSelectors[0].weight: Invalid value: 0"},
		{"L2Advertisement", `{preferredNodeSelectors: [{weight: 101, preference: {matchLabels: {rack: a}}}]}`, "spec.preferredNodeSelectors[0].weight: Invalid value: 101"},
		{"L2Advertisement", `{preferredNodeSelectors: [{weight: 5, preference: {}}]}`, "matches every node, and so prefers none: write matchLabels or matchExpressions"},
		{"L2Advertisement", `{preferredNodeSelectors: [{weight: 5}]}`, "spec.preferredNodeSelectors[0].preference: Required value"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], rebalance: never}`, ""},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], rebalance: gradual}`, ""},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], rebalance: gradual, preemptDelay: 90s}`, ""},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], rebalance: gradual, preemptDelay: -1s}`, "spec.preemptDelay: Invalid value: \"-1s\": is negative"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], rebalance: always}`, `supported values: "never", "gradual"`},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], preemptDelay: 90s}`, "preemptDelay has no effect without rebalance: gradual"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], rebalance: never, preemptDelay: 90s}`, "preemptDelay has no effect without rebalance: gradual"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 192.0.2.254}, {gateway: "fe80::1", interface: eth1.100}]}`, ""},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 192.0.2.254}, {gateway: 192.0.2.254}]}`, "has an entry twice"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: router}]}`, "is no IP address: write the address of the router"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 169.254.0.1}]}`, "is no address that a router has"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 224.0.0.1}]}`, "is no address that a router has"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: "fe80::1"}]}`, "write interface, too"},
		{"IPAddressPool", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 192.0.2.254, interface: lo}]}`, "is not the name of an interface"},
	} {
		err := r.Apply(ctx, fmt.Sprintf("{apiVersion: ironlb.io/v1alpha1, kind: %s, metadata: {name: test}, spec: %s}", tt.kind, tt.spec))
		switch {
		case tt.refused == "" && err != nil:
			t.Errorf("%s %s is refused: %v", tt.kind, tt.spec, err)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s %s: %v; want an error with %q", tt.kind, tt.spec, err, tt.refused)
		}
	}
	if err := r.Apply(ctx, "{apiVersion: ironlb.io/v1alpha1, kind: SpeakerStatus, metadata: {name: a}}"); err != nil {
		t.Fatal(err)
	}
	const status = `{"status": {"dataPlane": {"healthy": true, "reason": "Programmed"}, "virtualIPs": 2, "interfaces": [{"name": "eth0", "subnets": ["192.0.2.0/24"], "up": true}],
		"alive": "1/2", "members": [{"node": "b", "state": "%s", "since": "2026-01-01T00:00:00Z"}, {"node": "c", "state": "Silent"}], "updated": "2026-01-01T00:00:00Z"}}`
	for state, refused := range map[string]bool{"Alive": false, "Isolated": false, "Observer": false, "Leaving": false, "Dead": true} {
		err := r.Kube.Discovery().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/ironlb.io/v1alpha1/speakerstatuses/a/status").
			Body([]byte(fmt.Sprintf(status, state))).Do(ctx).Error()
		if (err != nil) != refused {
			t.Errorf("a member in state %s: %v; refused is %v", state, err, refused)
		}
	}
}
