package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestParseScheduler(t *testing.T) {
	for text, want := range map[string]Scheduler{
		"rr":                 {Name: "rr"},
		" wlc ":              {Name: "wlc"},
		"mh":                 {Name: "mh", Fallback: true, Port: true},
		"mh,fallback":        {Name: "mh", Fallback: true},
		"mh, port ,fallback": {Name: "mh", Fallback: true, Port: true},
		"mh,none":            {Name: "mh"},
		"sh":                 {Name: "sh", Fallback: true},
		"sh,port":            {Name: "sh", Port: true},
		"sh,none":            {Name: "sh"},
	} {
		if got, err := ParseScheduler(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, why := range map[string]string{
		"":           `"" is no scheduler: give one of rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh`,
		"RR":         `"RR" is no scheduler: give one of rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh`,
		"rr,port":    `rr has no flags: give "rr" alone`,
		"rr,":        `rr has no flags: give "rr" alone`,
		"mh,":        `"" is no flag of mh: give fallback, port, both, or none`,
		"mh,none,x":  `"none" is no flag of mh: give fallback, port, both, or none`,
		"sh,Fallbak": `"Fallbak" is no flag of sh: give fallback, port, both, or none`,
	} {
		if got, err := ParseScheduler(text); err == nil || err.Error() != why || got != (Scheduler{}) {
			t.Errorf("%q: %+v, %v; want: %s", text, got, err, why)
		}
	}
}

// What was read is read again from its own text.
func FuzzParseScheduler(f *testing.F) {
	for _, text := range []string{"rr", "mh", "mh,fallback,port", "sh,none", " sh , port", "lblcr,", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScheduler(text)
		if err != nil {
			if s != (Scheduler{}) {
				t.Fatalf("%q: %+v with error %v", text, s, err)
			}
			return
		}
		if again, err := ParseScheduler(s.String()); err != nil || again != s {
			t.Fatalf("%q: %+v, reparsed from %q: %+v, %v", text, s, s, again, err)
		}
		if !strings.Contains(text, s.Name) {
			t.Fatalf("%q names no %s", text, s.Name)
		}
	})
}

func TestParseForwarding(t *testing.T) {
	for text, want := range map[string]Forwarding{
		"": ForwardingPod, "pod": ForwardingPod, " nodeport ": ForwardingNodePort, "direct": ForwardingDirect,
	} {
		if got, err := ParseForwarding(text, ""); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
		if text == "" {
			want = ForwardingDirect
		}
		if got, err := ParseForwarding(text, ForwardingDirect); err != nil || got != want {
			t.Errorf("%q where direct is the default: %s, %v; want %s", text, got, err, want)
		}
	}
	if got, err := ParseForwarding("NodePort", ForwardingDirect); err == nil || got != ForwardingDirect {
		t.Errorf("NodePort: %s, %v; want an error and the default", got, err)
	}
}

func TestParseSourceRanges(t *testing.T) {
	four, six := netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("2001:db8::4")
	tests := []struct {
		spec       []string
		annotation string
		want       string // given, prefixes, unreadable
		four, six  bool   // accepted
	}{
		{nil, "", "false [] []", true, true},
		{nil, " , ", "false [] []", true, true},
		{[]string{" 192.0.2.0/24 "}, "", "true [192.0.2.0/24] []", true, false},
		{[]string{"2001:db8::/32"}, "", "true [2001:db8::/32] []", false, true},
		{[]string{"192.0.2.7/24", "192.0.2.0/24", "2001:db8::1/64"}, "", "true [192.0.2.0/24 2001:db8::/64] []", true, true},
		{nil, "198.51.100.0/24,192.0.2.0/24", "true [192.0.2.0/24 198.51.100.0/24] []", true, false},
		{[]string{"192.0.2.0/24"}, "198.51.100.0/24", "true [192.0.2.0/24] []", true, false},
		{[]string{"0.0.0.0/0"}, "", "true [0.0.0.0/0] []", true, false},
		{nil, "192.0.2.1, x,192.0.2.0/33", "true [] [192.0.2.1 x 192.0.2.0/33]", false, false},
		{[]string{"::ffff:192.0.2.0/120"}, "", "true [192.0.2.0/24] []", true, false},
		{[]string{"::ffff:0.0.0.0/90"}, "", "true [] [::ffff:0.0.0.0/90]", false, false},
	}
	for _, tt := range tests {
		r := ParseSourceRanges(tt.spec, tt.annotation)
		if got := fmt.Sprint(r.Given, r.Prefixes, r.Unreadable); got != tt.want {
			t.Errorf("%q %q: %s, want %s", tt.spec, tt.annotation, got, tt.want)
		}
		if r.Accepts(four) != tt.four || r.Accepts(six) != tt.six {
			t.Errorf("%q %q: accepts IPv4 %v IPv6 %v, want %v %v", tt.spec, tt.annotation, r.Accepts(four), r.Accepts(six), tt.four, tt.six)
		}
	}
}

// Every text is a prefix, or reported, and prefixes are as the packet filter takes them. Order and source do not
// matter.
func FuzzParseSourceRanges(f *testing.F) {
	for _, text := range []string{"", "192.0.2.0/24", " 192.0.2.0/24 ,2001:db8::/32", "x,y", "::ffff:1.2.3.4/96", "fe80::1%eth0/64", "0.0.0.0/0,::/0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseSourceRanges(nil, text)
		if r.Given != (len(r.Prefixes)+len(r.Unreadable) > 0) {
			t.Fatalf("%q: %+v", text, r)
		}
		for i, p := range r.Prefixes {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" || i > 0 && r.Prefixes[i-1].Compare(p) >= 0 {
				t.Fatalf("%q: prefixes %v", text, r.Prefixes)
			}
		}
		spec := strings.Split(text, ",")
		for i, j := 0, len(spec)-1; i < j; i, j = i+1, j-1 {
			spec[i], spec[j] = spec[j], spec[i]
		}
		if again := ParseSourceRanges(spec, "192.0.2.0/24"); r.Given && fmt.Sprint(again.Prefixes) != fmt.Sprint(r.Prefixes) {
			t.Fatalf("%q: %v from an annotation, %v from spec", text, r.Prefixes, again.Prefixes)
		}
	})
}
