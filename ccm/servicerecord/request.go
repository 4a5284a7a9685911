package servicerecord

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// maxText is the maximum length in bytes of a tenant's text that requests an address. It is copied into messages,
// conditions and the state kept per Service.
const maxText = 253

// bounded returns the text of a field without surrounding space, or nothing if it is too long.
func bounded(field, text string, bad *[]string) string {
	if text = strings.TrimSpace(text); len(text) > maxText {
		*bad = append(*bad, fmt.Sprintf("%s has %d characters: write %d at most", field, len(text), maxText))
		return ""
	}
	return text
}

// annotated reads one of IronLB's annotations or its synonym. Different values in both are a contradiction.
func annotated(svc *v1.Service, ours, synonym string, bad *[]string) string {
	a := bounded("annotation "+ours, svc.Annotations[ours], bad)
	b := bounded("annotation "+synonym, svc.Annotations[synonym], bad)
	if a != "" && b != "" && a != b {
		*bad = append(*bad, fmt.Sprintf("annotation %s is %q, but annotation %s is %q: remove one of them", ours, a, synonym, b))
	}
	return cmp.Or(a, b)
}

// requestedAddresses parses the addresses requested by annotation, by its synonym or by spec.loadBalancerIP. All given
// fields must name the same addresses, in any notation.
func requestedAddresses(svc *v1.Service, bad *[]string) []netip.Addr {
	var first, text string // the field read first, and its text
	var requested []netip.Addr
	for _, f := range []struct{ name, text string }{
		{"annotation " + v1alpha1.AnnotationAddresses, svc.Annotations[v1alpha1.AnnotationAddresses]},
		{"annotation " + MetallbAddresses, svc.Annotations[MetallbAddresses]},
		{"spec.loadBalancerIP", svc.Spec.LoadBalancerIP},
	} {
		if f.text = bounded(f.name, f.text, bad); f.text == "" {
			continue
		}
		also := parseAddresses(f.text, f.name, bad)
		switch {
		case first == "":
			first, text, requested = f.name, f.text, also
		case !sameSet(requested, also):
			*bad = append(*bad, fmt.Sprintf("%s is %q, but %s is %q: remove one of them", first, text, f.name, f.text))
		}
	}
	return requested
}

// RequestedBy returns the addresses that the Service requests.
func RequestedBy(svc *v1.Service) []netip.Addr {
	var bad []string
	return requestedAddresses(svc, &bad)
}

func sameSet(a, b []netip.Addr) bool {
	lacks := func(list []netip.Addr) func(netip.Addr) bool {
		return func(x netip.Addr) bool { return !slices.Contains(list, x) }
	}
	return !slices.ContainsFunc(a, lacks(b)) && !slices.ContainsFunc(b, lacks(a))
}

// parseAddresses parses a comma-separated list. Unparsable entries are reported in bad.
func parseAddresses(text, field string, bad *[]string) []netip.Addr {
	var out []netip.Addr
	for s := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil || a.Zone() != "" {
			*bad = append(*bad, fmt.Sprintf("%s: %q is not an IP address: write one like 192.0.2.1 or 2001:db8::1", field, strings.TrimSpace(s)))
			continue
		}
		out = append(out, a.Unmap())
	}
	return out
}
