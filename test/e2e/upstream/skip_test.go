package main

import (
	"slices"
	"strings"
	"testing"
)

// specsOf returns specs, some for each group of configurations.
func specsOf(t *testing.T) []Spec {
	t.Helper()
	var specs []Spec
	for _, name := range []string{
		"LoadBalancers should work", "Services should work", "Services should respect internalTrafficPolicy", "Service CIDRs should work",
		"Conntrack should work", "EndpointSlice should work", "Networking Granular Checks: Services should function: sctp",
		"DNS should work [Conformance]", "[Feature:IPv6DualStack] should work",
	} {
		specs = append(specs, Spec{Name: "[sig-network] " + name})
	}
	return specs
}

func TestSkips(t *testing.T) {
	skips, err := readSkips([]byte(`
- match: sctp
  reason: no SCTP
- spec: "[sig-network] LoadBalancers should work"
  configurations: [a]
  reason: needs a cloud
`))
	if err != nil {
		t.Fatal(err)
	}
	specs := specsOf(t)
	if err := unused(specs, skips); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]int{"a": 2, "b": 1} {
		picked, err := pick(name)
		if err != nil {
			t.Fatal(err)
		}
		selected, err := selectSpecs(specs, picked[0].Specs)
		if err != nil {
			t.Fatal(err)
		}
		p := plan(picked[0], selected, skips)
		if len(p.Skip) != want || len(p.Run)+len(p.Skip) != len(selected) {
			t.Errorf("%s: %d skipped, %d run of %d; want %d skipped and the others run", name, len(p.Skip), len(p.Run), len(selected), want)
		}
		if i := slices.IndexFunc(p.Skip, func(s Skipped) bool { return strings.Contains(s.Name, "sctp") }); i < 0 || p.Skip[i].Reason != "no SCTP" {
			t.Errorf("%s: skipped %v; want sctp with its reason", name, p.Skip)
		}
	}
}

// An entry without an excluded spec is an error: upstream has renamed or removed the spec.
func TestUnusedSkips(t *testing.T) {
	for text, want := range map[string]string{
		"- {match: no such spec, reason: r}":                                                             "entry 1: no spec is no such spec: remove the entry",
		"- {spec: 'Services should work', reason: r}":                                                    "no spec is Services should work: remove the entry",
		"- {match: Services, configurations: [a, bgp-port], reason: r}":                                  "no spec of configuration bgp-port is Services: remove the configuration",
		"- {match: Services, reason: r}\n- {match: IPv6DualStack, configurations: [b], reason: removed}": "entry 2: no spec of configuration b",
	} {
		skips, err := readSkips([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := unused(specsOf(t), skips); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want %q", text, err, want)
		}
	}
}

func TestWrongSkips(t *testing.T) {
	for text, want := range map[string]string{
		"- {match: a}":                                  "entry 1: reason is empty",
		"- {spec: a, match: b, reason: r}":              "entry 1: set either spec or match",
		"- {reason: r}":                                 "entry 1: set either spec or match",
		"- {match: '(', reason: r}":                     "entry 1: match: ",
		"- {match: a, configurations: [z], reason: r}":  `entry 1: configurations: no configuration "z": there are a, b, `,
		"- {match: a, configuration: [a], reason: r}":   `unknown field "configuration"`,
		"- {match: a, reason: r}\n- {spec: '', why: r}": `unknown field "why"`,
	} {
		if _, err := readSkips([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want %q", text, err, want)
		}
	}
}

// The repository's list is well-formed; each run compares it with upstream's specs.
func TestSkipsFile(t *testing.T) {
	if _, err := readSkips(skipsText); err != nil {
		t.Error(err)
	}
}

func TestSelect(t *testing.T) {
	specs := specsOf(t)
	got, err := selectSpecs(specs, []string{`LoadBalancers`, `should`})
	if err != nil || len(got) != len(specs) {
		t.Errorf("got %d specs, %v; want each of %d once", len(got), err, len(specs))
	}
	for _, wrong := range []string{"no such spec", "("} {
		if _, err := selectSpecs(specs, []string{"LoadBalancers", wrong}); err == nil {
			t.Errorf("%s: no error", wrong)
		}
	}
	if _, err := pick("a z"); err == nil || !strings.Contains(err.Error(), `"z": there are a, b`) {
		t.Errorf("pick: got %v", err)
	}
	if got, err := pick("b, a"); err != nil || len(got) != 2 || got[0].Name != "b" {
		t.Errorf("pick: got %v, %v", got, err)
	}
}

func TestNewest(t *testing.T) {
	if got := newest([]string{"x/agnhost:2.55", "x/agnhost:2.63.0", "y/agnhost:2.6"}); got != "x/agnhost:2.63.0" {
		t.Errorf("got %s", got)
	}
}
