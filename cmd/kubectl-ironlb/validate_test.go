package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestValidate: each rule of the API server and of ironlb-ccm is one of validate: the errors name object and field.
func TestValidate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "objects.yaml")
	for name, test := range map[string]struct {
		objects string
		want    []string // none: valid
	}{
		"valid": {objects: `
{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: lan, labels: {rack: a}}, spec: {addresses: [192.0.2.0/28, "2001:db8::/124"]}}
---
---
{apiVersion: v1, kind: List, items: [
  {apiVersion: ironlb.io/v1alpha1, kind: L2Advertisement, metadata: {name: lan}, spec: {ipAddressPools: [lan]}},
  {apiVersion: ironlb.io/v1alpha1, kind: BGPAdvertisement, metadata: {name: all}, spec: {peers: [tor], ipAddressPoolSelectors: [{matchLabels: {rack: a}}]}}]}
---
{apiVersion: ironlb.io/v1alpha1, kind: BGPPeer, metadata: {name: tor}, spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}`},
		"unknown field": {
			`{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: lan}, spec: {adresses: [192.0.2.0/28]}}`,
			[]string{"IPAddressPool lan: spec.adresses is no field of the kind", "IPAddressPool lan: spec.addresses: Required value"},
		},
		"CEL": {
			`{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: lan}, spec: {addresses: [192.0.2.9-192.0.2.1]}}`,
			[]string{"IPAddressPool lan: spec.addresses: Invalid value", "ends before it begins"},
		},
		"beyond CEL": {
			`{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: lan}, spec: {addresses: ["2001:db8::9-2001:db8::1"]}}`,
			[]string{"IPAddressPool lan: spec.addresses[0]"},
		},
		"overlap": {`
{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: a}, spec: {addresses: [192.0.2.0/28]}}
---
{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: b}, spec: {addresses: [192.0.2.8]}}`,
			[]string{"IPAddressPool b: overlapping a: list every address once"},
		},
		"references": {`
{apiVersion: ironlb.io/v1alpha1, kind: L2Advertisement, metadata: {name: lan}, spec: {ipAddressPools: [lan]}}
---
{apiVersion: ironlb.io/v1alpha1, kind: BGPAdvertisement, metadata: {name: all}, spec: {peers: [tor]}}
---
{apiVersion: ironlb.io/v1alpha1, kind: BGPPeer, metadata: {name: up}, spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, bfdProfile: fast}}`,
			[]string{"L2Advertisement lan: spec.ipAddressPools: there is no IPAddressPool lan", "BGPAdvertisement all: spec.peers: the files have no BGPPeer tor", "BGPPeer up: spec.bfdProfile: the files have no BFDProfile fast"},
		},
		"selector": {
			`{apiVersion: ironlb.io/v1alpha1, kind: L2Advertisement, metadata: {name: lan}, spec: {nodeSelectors: [{matchExpressions: [{key: rack, operator: Near}]}]}}`,
			[]string{"L2Advertisement lan: spec.nodeSelectors[0]: "},
		},
		"kind":      {`{apiVersion: ironlb.io/v1alpha1, kind: Pool, metadata: {name: lan}}`, []string{"Pool lan: IronLB has no such kind"}},
		"version":   {`{apiVersion: ironlb.io/v1, kind: IPAddressPool, metadata: {name: lan}}`, []string{"IPAddressPool lan: apiVersion is ironlb.io/v1: write ironlb.io/v1alpha1"}},
		"namespace": {`{apiVersion: ironlb.io/v1alpha1, kind: L2Advertisement, metadata: {name: lan, namespace: x}}`, []string{"L2Advertisement lan: metadata.namespace"}},
		"YAML":      {"a: b: c", []string{"error: " + file + ": "}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(test.objects), 0o600); err != nil {
				t.Fatal(err)
			}
			got := run(nil, "validate", "-f", file)
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
			if ok := strings.HasSuffix(got, ": 0 problems\n"); ok != (test.want == nil) {
				t.Errorf("%s", got)
			}
		})
	}
	if got := run(nil, "validate", "-f", file+"x"); !strings.Contains(got, "error: reading the manifests: open "+file+"x") {
		t.Error(got)
	}
}
