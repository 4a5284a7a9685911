package metallb

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// rules have what becomes of each field of a spec, by kind and path; [] stands for each element of a list. Whatever
// they keep is checked by the rules of IronLB's CustomResourceDefinitions afterwards.
var rules map[string]map[string]func(*field)

func init() { // the rules of lists and objects refer to those of their fields
	rules = map[string]map[string]func(*field){
		kindPool: {
			"addresses":         (*field).addresses,
			"autoAssign":        (*field).keep,
			"avoidBuggyIPs":     (*field).keep,
			"serviceAllocation": (*field).nested,

			"serviceAllocation.priority":           (*field).priority,
			"serviceAllocation.namespaces":         (*field).unique,
			"serviceAllocation.namespaceSelectors": (*field).keep,
			"serviceAllocation.serviceSelectors":   (*field).keep,
		},
		"L2Advertisement": {
			"ipAddressPools":         (*field).unique,
			"ipAddressPoolSelectors": (*field).keep,
			"serviceSelectors":       (*field).keep,
			"nodeSelectors":          (*field).keep,
			"interfaces":             (*field).unique,
			"preferredNodeSelectors": (*field).preferredNodes,

			"preferredNodeSelectors[].weight":     (*field).keep,
			"preferredNodeSelectors[].preference": (*field).keep,
		},
		"BGPAdvertisement": {
			"aggregationLength":      (*field).keep,
			"aggregationLengthV6":    (*field).keep,
			"localPref":              (*field).unlessZero,
			"asPathPrepend":          (*field).asPathPrepend,
			"communities":            (*field).communities,
			"peers":                  (*field).unique,
			"ipAddressPools":         (*field).unique,
			"ipAddressPoolSelectors": (*field).keep,
			"serviceSelectors":       (*field).keep,
			"nodeSelectors":          (*field).keep,
		},
		"Community": {
			"communities":         (*field).aliases,
			"communities[].name":  (*field).keep,
			"communities[].value": (*field).community,
		},
		"BFDProfile": {
			"receiveInterval":  (*field).keep,
			"transmitInterval": (*field).keep,
			"detectMultiplier": (*field).keep,
			"passiveMode":      (*field).keep,
			"minimumTtl":       (*field).keep,
			"echoMode":         (*field).echo,
			"echoInterval":     (*field).echo,
		},
		kindPeer: {
			"myASN":                  (*field).keep,
			"peerASN":                (*field).unlessZero,
			"localASN":               (*field).localASN,
			"dynamicASN":             (*field).keep,
			"peerAddress":            (*field).peerAddress,
			"interface":              (*field).unnumbered,
			"peerPort":               (*field).unlessZero,
			"sourceAddress":          (*field).keep,
			"holdTime":               (*field).holdTime,
			"keepaliveTime":          (*field).keepaliveTime,
			"connectTime":            (*field).connectTime,
			"routerID":               (*field).routerID,
			"nodeSelectors":          (*field).keep,
			"password":               (*field).password,
			"passwordSecret":         (*field).nested,
			"bfdProfile":             (*field).keep,
			"enableGracefulRestart":  (*field).gracefulRestart,
			"ebgpMultiHop":           (*field).multiHop,
			"vrf":                    (*field).vrf,
			"disableMP":              (*field).disableMP,
			"dualStackAddressFamily": (*field).keep,

			"passwordSecret.name":      (*field).passwordSecret,
			"passwordSecret.namespace": (*field).secretNamespace,
		},
	}
}

// field is a field of an object of MetalLB, with a value.
type field struct {
	*conversion
	name, path, pattern string
	value               any
	out                 map[string]any // of the object with the field
}

func (f *field) keep() {
	f.out[f.name] = f.value
	f.row(Kept, f.path, "")
}

// change writes another value, or keeps the same one.
func (f *field) change(value any, why string) {
	if value == f.value {
		f.keep()
		return
	}
	f.out[f.name] = value
	f.row(Changed, f.path, fmt.Sprintf("%v: %s", value, why))
}

// drop leaves the field out without another effect.
func (f *field) drop(why string) { f.row(Changed, f.path, "removed: "+why) }

func (f *field) refuse(format string, args ...any) {
	f.row(Refused, f.path, fmt.Sprintf(format, args...))
}

// number returns an integer.
func number(value any) (int64, bool) {
	switch v := value.(type) {
	case int64:
		return v, true
	case float64:
		return int64(v), v == float64(int64(v))
	}
	return 0, false
}

func (f *field) isZero() bool {
	n, ok := number(f.value)
	return ok && n == 0
}

func (f *field) unlessZero() {
	if f.isZero() {
		f.drop("0 is the default")
		return
	}
	f.keep()
}

// nested converts the fields of an object.
func (f *field) nested() {
	from, ok := f.value.(map[string]any)
	if !ok {
		f.refuse("is not an object: write its fields")
		return
	}
	to := map[string]any{}
	f.walk(f.path, f.pattern, from, to)
	if len(to) > 0 {
		f.out[f.name] = to
	} else if f.pattern == "serviceAllocation" { // an empty one has an effect: the pool is used before those without
		f.out[f.name] = to
		f.row(Kept, f.path, "")
	}
}

// each converts the fields of each object in a list. without returns why an object is left out, empty for none.
func (f *field) each(without func(map[string]any) string) {
	list, ok := f.value.([]any)
	if ok = ok && !slices.ContainsFunc(list, func(e any) bool { _, is := e.(map[string]any); return !is }); !ok {
		f.refuse("is not a list of objects: write one")
		return
	}
	var out []any
	for i, e := range list {
		from, to, path := e.(map[string]any), map[string]any{}, fmt.Sprintf("%s[%d]", f.path, i)
		if why := without(from); why != "" {
			f.row(Changed, path, "removed: "+why)
			continue
		}
		f.walk(path, f.pattern+"[]", from, to)
		out = append(out, to)
	}
	if len(out) > 0 {
		f.out[f.name] = out
	}
}

func (f *field) aliases() { f.each(func(map[string]any) string { return "" }) }

func (f *field) preferredNodes() {
	f.each(func(entry map[string]any) string {
		selector, _ := entry["preference"].(map[string]any)
		labels, _ := selector["matchLabels"].(map[string]any)
		expressions, _ := selector["matchExpressions"].([]any)
		if len(labels)+len(expressions) > 0 {
			return ""
		}
		return "it matches every node, and so prefers none"
	})
}

// texts returns a list of strings.
func (f *field) texts() ([]string, bool) {
	list, ok := f.value.([]any)
	var out []string
	for _, e := range list {
		s, is := e.(string)
		ok = ok && is
		out = append(out, s)
	}
	if !ok {
		f.refuse("is not a list of strings: write one")
	}
	return out, ok
}

// convertEach converts a list of strings. to returns the new value, and why it is another one, or an error for one that
// is left out.
func (f *field) convertEach(to func(string) (value, why string, err error)) {
	texts, ok := f.texts()
	if !ok {
		return
	}
	var out []any
	same := true
	for i, text := range texts {
		path := fmt.Sprintf("%s[%d]", f.path, i)
		value, why, err := to(text)
		switch {
		case err != nil:
			f.row(Refused, path, err.Error())
		case slices.Contains(out, any(value)):
			f.row(Changed, path, value+": removed: it is listed twice")
		default:
			out = append(out, value)
			if value == text {
				continue
			}
			f.row(Changed, path, value+": "+why)
		}
		same = false
	}
	if len(out) > 0 {
		f.out[f.name] = out
		if same {
			f.row(Kept, f.path, "")
		} else {
			f.row(Kept, f.path, "the other entries")
		}
	}
}

func (f *field) unique() {
	f.convertEach(func(text string) (string, string, error) { return text, "", nil })
}

func (f *field) addresses() {
	f.convertEach(func(text string) (value, why string, err error) {
		value = strings.TrimSpace(text)
		if p, bad := netip.ParsePrefix(value); bad == nil {
			value, why = p.Masked().String(), "the network of the CIDR, as MetalLB reads it"
		} else if first, last, is := strings.Cut(value, "-"); is {
			value, why = unmapped(first)+"-"+unmapped(last), "the same addresses"
		}
		_, err = pools.ParseRange(value)
		return value, why, err
	})
}

// unmapped returns an address in its usual form.
func unmapped(text string) string {
	a, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil {
		return strings.TrimSpace(text)
	}
	return a.Unmap().String()
}

func (f *field) priority() {
	if n, ok := number(f.value); ok && n < 0 {
		f.refuse("is %d, and IronLB's priorities begin with 0: renumber those of all pools", n)
		return
	}
	f.keep()
}

func (f *field) asPathPrepend() {
	if f.isZero() {
		f.drop("0 is the default")
		return
	}
	f.refuse("IronLB does not lengthen AS paths: do so in the import policy of the router, or use localPref or communities")
}

func (f *field) communities() {
	f.convertEach(func(text string) (string, string, error) {
		if v1alpha1.CommunityName(text) {
			return text, "", nil
		}
		value, err := communityOf(text)
		return value, "without leading zeros", err
	})
}

func (f *field) community() {
	text, _ := f.value.(string)
	value, err := communityOf(text)
	if err != nil {
		f.refuse("%v", err)
		return
	}
	f.change(value, "without leading zeros")
}

// communityOf returns a community in the form of IronLB's objects. MetalLB accepts leading zeros.
func communityOf(text string) (string, error) {
	parts := strings.Split(text, ":")
	for i, p := range parts {
		if n, err := strconv.ParseUint(p, 10, 32); err == nil {
			parts[i] = strconv.FormatUint(n, 10)
		}
	}
	value := strings.Join(parts, ":")
	_, err := v1alpha1.ParseCommunity(value)
	return value, err
}

func (f *field) echo() {
	if on, _ := f.from["echoMode"].(bool); on {
		f.refuse("IronLB has no echo mode of BFD: lower receiveInterval and transmitInterval for the same detection time")
		return
	}
	f.drop("it has no effect without echoMode: true")
}

// internal reports whether a peer has the AS of the nodes.
func (f *field) internal() bool {
	mine, _ := number(f.from["myASN"])
	theirs, _ := number(f.from["peerASN"])
	return mine == theirs || f.from["dynamicASN"] == string(v1alpha1.DynamicInternal)
}

func (f *field) localASN() {
	mine, _ := number(f.from["myASN"])
	switch n, _ := number(f.value); {
	case n == 0 || n == mine:
		f.drop("it is myASN")
	case f.internal():
		f.refuse("is for external peers: remove it, and write the AS that the router has configured as myASN")
	default:
		f.keep()
	}
}

func (f *field) peerAddress() {
	text, _ := f.value.(string)
	if a, err := netip.ParseAddr(text); err == nil && a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		f.refuse("is link-local: write it with the interface of the nodes, like %s%%eth0", a)
		return
	}
	f.change(unmapped(text), "the same address")
}

func (f *field) unnumbered() {
	f.refuse("IronLB connects to addresses only: write the router's link-local address as peerAddress, like fe80::1%%%v", f.value)
}

// seconds returns a duration in full seconds, as MetalLB rounds it. It refuses others than those from least to most.
func (f *field) seconds(least, most time.Duration) (time.Duration, bool) {
	text, _ := f.value.(string)
	d, err := time.ParseDuration(text)
	if err != nil {
		f.refuse("%v is not a duration: write it like 90s", f.value)
		return 0, false
	}
	if d = d.Truncate(time.Second); d < least || d > most {
		f.refuse("%s is not between %v and %v: write a duration that is", text, least, most)
		return 0, false
	}
	return d, true
}

// duration writes a duration, in the notation that it has if it is the same.
func (f *field) duration(d time.Duration, why string) {
	if same, err := time.ParseDuration(fmt.Sprint(f.value)); err == nil && same == d {
		f.keep()
		return
	}
	f.change(d.String(), why)
}

const (
	leastHoldTime   = 3 * time.Second // RFC 4271, 4.2
	mostOfTwoOctets = 65535 * time.Second
	rounded         = "in full seconds, as MetalLB rounds it"
)

func (f *field) holdTime() {
	if d, ok := f.seconds(leastHoldTime, mostOfTwoOctets); ok {
		f.duration(d, rounded)
	}
}

// keepaliveTime also writes holdTime if there is none.
func (f *field) keepaliveTime() {
	text, _ := f.value.(string)
	if d, err := time.ParseDuration(text); err == nil && d == 0 {
		f.drop("the default is a third of holdTime")
		return
	}
	d, ok := f.seconds(time.Second, mostOfTwoOctets)
	if !ok {
		return
	}
	if f.from["holdTime"] == nil {
		f.out[f.name], f.out["holdTime"] = d.String(), (3 * d).String()
		f.row(Changed, f.path, fmt.Sprintf("%v, with a holdTime of %v, as MetalLB does", d, 3*d))
		return
	}
	hold, err := time.ParseDuration(fmt.Sprint(f.from["holdTime"]))
	hold = hold.Truncate(time.Second)
	switch most := (hold / 3).Truncate(time.Second); {
	case err != nil || hold < leastHoldTime:
		f.refuse("has no effect without holdTime: see there")
	case d > most:
		f.duration(most, "a third of holdTime is the most")
	default:
		f.duration(d, rounded)
	}
}

func (f *field) connectTime() {
	if d, ok := f.seconds(time.Second, mostOfTwoOctets); ok {
		f.duration(d, rounded)
	}
}

func (f *field) routerID() {
	text, _ := f.value.(string)
	if a, err := netip.ParseAddr(text); err != nil || !a.Unmap().Is4() || a.IsUnspecified() {
		f.refuse("%q is no BGP identifier: write one like 192.0.2.10, or leave it out for the node's IPv4 address", text)
		return
	}
	f.change(unmapped(text), "the same identifier")
}

func (f *field) gracefulRestart() {
	if f.value != true {
		f.drop("false is the default")
		return
	}
	f.out["gracefulRestart"] = true
	f.row(Changed, f.path, "gracefulRestart: true")
}

func (f *field) multiHop() {
	if f.value == true && f.internal() {
		f.drop("an internal peer may be any number of hops away")
		return
	}
	f.keep()
}

func (f *field) vrf() {
	f.refuse("IronLB knows no VRFs: sessions use the main routing table of the node. Make the router reachable there, and leave the field out")
}

func (f *field) disableMP() {
	f.drop("a session has the family of peerAddress only, unless dualStackAddressFamily is true")
}

func (f *field) password() {
	name := "metallb-" + f.source.GetName()
	f.out["passwordSecret"] = map[string]any{"name": name}
	f.addSecret(name, encoded(fmt.Sprint(f.value)))
	f.row(Changed, f.path, fmt.Sprintf("passwordSecret.name: %s, a new Secret in namespace %s", name, v1alpha1.PasswordNamespace))
}

func (f *field) passwordSecret() {
	from := types.NamespacedName{Namespace: f.source.GetNamespace(), Name: fmt.Sprint(f.value)}
	f.out[f.name] = f.value
	s := f.secrets[from]
	if s == nil {
		f.refuse("Secret %s is not given: create Secret %s in namespace %s, of type %s, with the key password",
			from, from.Name, v1alpha1.PasswordNamespace, corev1.SecretTypeBasicAuth)
		return
	}
	password, ok, _ := unstructured.NestedString(s.Object, "data", "password")
	if text, is, _ := unstructured.NestedString(s.Object, "stringData", "password"); is {
		password, ok = encoded(text), true
	}
	if !ok {
		f.refuse("Secret %s has no key password: write it", from)
		return
	}
	f.addSecret(from.Name, password)
	f.row(Changed, f.path, fmt.Sprintf("%s, a copy in namespace %s", from.Name, v1alpha1.PasswordNamespace))
}

func (f *field) secretNamespace() {
	f.drop(fmt.Sprintf("Secrets of peers are in namespace %s", v1alpha1.PasswordNamespace))
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// addSecret adds a Secret with the encoded password, once.
func (f *field) addSecret(name, password string) {
	if slices.ContainsFunc(f.Objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kindSecret && o.GetName() == name }) {
		return
	}
	s := &unstructured.Unstructured{Object: map[string]any{
		"type": string(corev1.SecretTypeBasicAuth), "data": map[string]any{"password": password},
	}}
	s.SetAPIVersion("v1")
	s.SetKind(kindSecret)
	s.SetNamespace(v1alpha1.PasswordNamespace)
	s.SetName(name)
	f.Objects = append(f.Objects, s)
}
