package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ccm"
	"github.com/ironlb/ironlb/cmd/internal/version"
)

// TestDefaults: the process runs in a Pod without flags.
func TestDefaults(t *testing.T) {
	settings := ccm.DefaultSettings()
	cmd, err := command(t.Context(), &settings, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"cloud-provider":                  "ironlb",
		"controllers":                     "[*]",
		"leader-elect":                    "true",
		"leader-elect-resource-name":      "ironlb-ccm",
		"leader-elect-resource-namespace": "ironlb-system",
		"use-service-account-credentials": "false",
		"concurrent-service-syncs":        "48",
		"load-balancer-class":             "ironlb.io/lb",
		"only-class":                      "false",
		"ip-mode":                         "Proxy",
		"forwarding":                      "pod",
	} {
		f := cmd.Flags().Lookup(name)
		if f == nil {
			t.Errorf("there is no --%s", name)
			continue
		}
		if f.DefValue != want {
			t.Errorf("--%s is %s, want %s", name, f.DefValue, want)
		}
	}
}

// TestHelp checks that the help has the flags of this program and none of nodes, routes and webhooks.
func TestHelp(t *testing.T) {
	settings := ccm.DefaultSettings()
	cmd, err := command(t.Context(), &settings, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.SetOut(&out)
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ironlb-ccm [flags]", "--kubeconfig", "--load-balancer-class", "ironlb-class-controller, ironlb-placement-controller, ironlb-pool-controller, service-lb-controller"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help lacks %q", want)
		}
	}
	for _, not := range append(ccm.HiddenFlags(), "webhook", "concurrent-node-syncs", "cloud-node-controller", "cloud-controller-manager") {
		if strings.Contains(out.String(), not) {
			t.Errorf("the help has %q", not)
		}
	}
}

// TestVersion: --version prints this program's version and commit.
func TestVersion(t *testing.T) {
	var out bytes.Buffer
	settings := ccm.DefaultSettings()
	cmd, err := command(t.Context(), &settings, nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--version"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "ironlb-ccm version "+version.String()+"\n"; got != want {
		t.Errorf("--version prints %q, want %q", got, want)
	}
}
