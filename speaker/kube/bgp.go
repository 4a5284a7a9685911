package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// bgpObjects are the current BGP objects. Their references are resolved after all pending changes are in.
type bgpObjects struct {
	peers       map[string]peerObject
	profiles    map[string]profileObject
	secrets     map[string]secretObject
	ads         map[string]adObject
	communities map[string]map[string]v1alpha1.CommunityValue // by object and name
	// changedPeers and changedAds mean that references must be resolved again.
	changedPeers, changedAds bool
	// gone are deleted profiles that a peer still names.
	gone        map[string]profileObject
	secretsWere secretsState
}

func newBGPObjects() bgpObjects {
	return bgpObjects{
		peers: map[string]peerObject{}, profiles: map[string]profileObject{}, secrets: map[string]secretObject{},
		ads: map[string]adObject{}, communities: map[string]map[string]v1alpha1.CommunityValue{},
		gone: map[string]profileObject{},
	}
}

// peerObject is a BGPPeer with the names of the objects that it references. last is the recorded profile of that name,
// in force while there is no such object; nil for none.
type peerObject struct {
	peer            view.BGPPeer
	secret, profile string
	last            *profileObject
}

// profileObject is a BFDProfile. hops is minimumTtl, 0 if it is unset.
type profileObject struct {
	bfd  view.BFD
	hops uint8
}

// secretObject is the relevant part of a Secret. It prints without the password.
type secretObject struct{ Password view.Secret }

// adObject is a BGPAdvertisement with its literal communities and the names of the others.
type adObject struct {
	ad     view.BGPAdvertisement
	values []v1alpha1.CommunityValue
	names  []string
}

// fold stores one changed object, and reports whether it is a BGP object.
func (b *bgpObjects) fold(r ref, value any) bool {
	name := r.key.Name
	switch r.kind {
	case kindBGPPeer:
		put(b.peers, name, value)
		b.changedPeers = true
	case kindBFDProfile:
		if last, was := b.profiles[name]; was && value == nil { // ironlb-ccm has not recorded it yet
			b.gone[name] = last
		} else if value != nil {
			delete(b.gone, name)
		}
		put(b.profiles, name, value)
		b.changedPeers = true
	case kindSecret:
		put(b.secrets, name, value)
		b.changedPeers = true
	case kindBGPAdvertisement:
		put(b.ads, name, value)
		b.changedAds = true
	case kindCommunity:
		put(b.communities, name, value)
		b.changedAds = true
	default:
		return false
	}
	return true
}

// resolve resolves all references and puts into the View what differs from before.
func (b *bgpObjects) resolve(v *view.View, touched *view.Touched, secrets secretsState) {
	if b.changedPeers || b.secretsWere != secrets {
		b.secretsWere = secrets
		b.changedPeers = false
		for name := range v.BGPPeers {
			if _, still := b.peers[name]; !still {
				delete(v.BGPPeers, name)
				touched.BGPPeers[name] = struct{}{}
			}
		}
		maps.DeleteFunc(b.gone, func(name string, _ profileObject) bool {
			return !slices.ContainsFunc(slices.Collect(maps.Values(b.peers)), func(o peerObject) bool { return o.profile == name })
		})
		for name, o := range b.peers {
			have, was := v.BGPPeers[name]
			if o.secret != "" && secrets.unread {
				b.changedPeers = true
				continue // unchanged, or absent until the Secrets are read, which is soon
			}
			want := b.peerOf(o, secrets)
			if !was || !reflect.DeepEqual(have, want) {
				v.BGPPeers[name] = want
				touched.BGPPeers[name] = struct{}{}
			}
		}
	}
	if b.changedAds {
		b.changedAds = false
		for name := range v.BGPAdvertisements {
			if _, still := b.ads[name]; !still {
				delete(v.BGPAdvertisements, name)
				touched.BGPAdvertisements = true
			}
		}
		known := b.known()
		for name, o := range b.ads {
			want := o.resolve(known)
			if have, was := v.BGPAdvertisements[name]; !was || !reflect.DeepEqual(have, want) {
				v.BGPAdvertisements[name] = want
				touched.BGPAdvertisements = true
			}
		}
	}
}

// peerOf returns the peer with its BFDProfile and password.
func (b *bgpObjects) peerOf(o peerObject, secrets secretsState) view.BGPPeer {
	out := o.peer
	if o.profile != "" {
		profile, there := b.profiles[o.profile]
		if !there {
			profile, there = b.gone[o.profile]
		}
		switch {
		case there:
		case o.last != nil:
			profile = *o.last
		default:
			out.Wrong = routes.NotConfigured
			out.Message = fmt.Sprintf("spec.bfdProfile: there is no BFDProfile %s: make it, or name another one", o.profile)
			return out
		}
		out.BFD = profile.bfd
		out.BFD.MinimumTTL = profile.minimumTTL(out)
	}
	if o.secret == "" {
		return out
	}
	secret, there := b.secrets[o.secret]
	switch {
	case there:
		out.Password = secret.Password
		if why := badPassword(secret.Password); why != "" {
			out.Password, out.Wrong = "", routes.PasswordMissing
			out.Message = fmt.Sprintf("spec.passwordSecret: the Secret %s/%s %s", secrets.namespace, o.secret, why)
		}
	case secrets.refused != "":
		out.Wrong = routes.PasswordMissing
		out.Message = fmt.Sprintf("spec.passwordSecret: cannot read Secrets of namespace %s: %s: apply deploy/ironlb.yaml, or upgrade the Helm release", secrets.namespace, secrets.refused)
	default:
		out.Wrong = routes.PasswordMissing
		out.Message = fmt.Sprintf("spec.passwordSecret: namespace %s has no Secret %s of type %s: make it, with the password as its key %s",
			secrets.namespace, o.secret, corev1.SecretTypeBasicAuth, corev1.BasicAuthPasswordKey)
	}
	return out
}

// defaultHops is the minimum remaining TTL in a packet of a multihop BFD session if the profile sets none.
const defaultHops = 254

// minimumTTL returns the minimum TTL of the peer's BFD session: 0 for a single-hop one, as to a link-local address. An
// external peer is multihop by ebgpMultiHop, an internal one by a profile with minimumTtl. With ttlSecurity the peer is
// on link. A profile with minimumTtl then selects only the multihop port (FRR has its session there).
func (p profileObject) minimumTTL(peer view.BGPPeer) uint8 {
	internal := peer.Dynamic == view.AnyInternal || peer.PeerASN != 0 && peer.PeerASN == peer.MyASN
	switch {
	case peer.Address.Zone() != "":
		return 0
	case peer.TTLSecurity && p.hops > 0:
		return 255
	case peer.MultiHop && p.hops == 0:
		return defaultHops
	case peer.MultiHop, internal:
		return p.hops
	}
	return 0
}

// maxPassword is the maximum length of a TCP MD5 key (TCP_MD5SIG_MAXKEYLEN of linux/tcp.h).
const maxPassword = 80

// badPassword returns why a text cannot be a password, empty if it can.
func badPassword(password view.Secret) string {
	text := string(password)
	if text == "" {
		return fmt.Sprintf("has no key %s, or an empty one: put the password there", corev1.BasicAuthPasswordKey)
	}
	if len(text) > maxPassword {
		return fmt.Sprintf("has a password of %d bytes, and TCP MD5 takes %d: shorten it", len(text), maxPassword)
	}
	if slices.ContainsFunc([]byte(text), func(c byte) bool { return c < ' ' || c == 0x7f }) {
		return "has a password with a line feed or another control character, which a router's would not have: write it without, as with echo -n"
	}
	return ""
}

// known returns the communities that have a name. A name with two values in two objects is left out.
func (b *bgpObjects) known() map[string]v1alpha1.CommunityValue {
	known, ambiguous := map[string]v1alpha1.CommunityValue{}, map[string]struct{}{}
	for _, communities := range b.communities {
		for name, value := range communities {
			if before, was := known[name]; was && before != value {
				ambiguous[name] = struct{}{}
			}
			known[name] = value
		}
	}
	maps.DeleteFunc(known, func(name string, _ v1alpha1.CommunityValue) bool { _, bad := ambiguous[name]; return bad })
	return known
}

// resolve returns the advertisement with its communities.
func (o adObject) resolve(known map[string]v1alpha1.CommunityValue) view.BGPAdvertisement {
	out, values := o.ad, slices.Clone(o.values)
	for _, name := range o.names {
		if value, there := known[name]; there {
			values = append(values, value)
		} else {
			out.Missing = append(out.Missing, name)
		}
	}
	slices.Sort(out.Missing)
	var standard []uint32
	var large []view.LargeCommunity
	for _, v := range values {
		if v.Large {
			large = append(large, view.LargeCommunity{Global: v.Parts[0], Local1: v.Parts[1], Local2: v.Parts[2]})
		} else {
			standard = append(standard, v.Parts[0]<<16|v.Parts[1])
		}
	}
	out.Attributes.Communities, out.Attributes.LargeCommunities = view.NewCommunitySet(standard...), view.NewLargeCommunitySet(large...)
	return out
}

func convertPeer(obj any) (ref, any) {
	o := obj.(*v1alpha1.BGPPeer)
	out := peerObjectOf(&o.Spec)
	out.peer.Created = o.CreationTimestamp.Unix()
	var last v1alpha1.BFDProfile
	if err := json.Unmarshal([]byte(o.Status.LastBFDProfile), &last); err == nil && last.Name == out.profile {
		_, profile := convertProfile(&last)
		out.last = new(profile.(profileObject))
	}
	return ref{kind: kindBGPPeer, key: pools.ServiceKey{Name: o.Name}}, out
}

// Defaults of a BGPPeer that the schema does not fill in.
const (
	defaultPort        = 179
	defaultRestartTime = time.Minute
)

// peerObjectOf converts a BGPPeer. The schema accepts only valid ones.
func peerObjectOf(s *v1alpha1.BGPPeerSpec) peerObject {
	p := view.BGPPeer{
		Port:  uint16(s.PeerPort),
		MyASN: uint32(s.MyASN), LocalASN: uint32(value(s.LocalASN, 0)), PeerASN: uint32(value(s.PeerASN, 0)),
		DualStack: s.DualStackAddressFamily, MultiHop: s.EBGPMultiHop, TTLSecurity: s.TTLSecurity, GracefulRestart: s.GracefulRestart,
		Nodes: selectors(s.NodeSelectors), MaxReceivedPrefixes: uint32(s.MaxReceivedPrefixes),
	}
	p.Address, _ = netip.ParseAddr(s.PeerAddress)
	p.Source, _ = netip.ParseAddr(s.SourceAddress)
	p.RouterID, _ = netip.ParseAddr(s.RouterID)
	if p.Port == 0 {
		p.Port = defaultPort
	}
	switch s.DynamicASN {
	case v1alpha1.DynamicInternal:
		p.Dynamic = view.AnyInternal
	case v1alpha1.DynamicExternal:
		p.Dynamic = view.AnyExternal
	}
	if s.HoldTime != nil {
		p.HoldTime = s.HoldTime.Duration
	}
	if s.KeepaliveTime != nil {
		p.KeepaliveTime = s.KeepaliveTime.Duration
	}
	if s.ConnectTime != nil {
		p.ConnectTime = s.ConnectTime.Duration
	}
	if s.GracefulRestart {
		p.RestartTime = defaultRestartTime
		if s.RestartTime != nil {
			p.RestartTime = s.RestartTime.Duration
		}
	}
	out := peerObject{peer: p, profile: s.BFDProfile}
	if s.PasswordSecret != nil {
		out.secret = s.PasswordSecret.Name
	}
	return out
}

func convertProfile(obj any) (ref, any) {
	o := obj.(*v1alpha1.BFDProfile)
	interval := func(ms int32) time.Duration { return time.Duration(cmp.Or(ms, 300)) * time.Millisecond }
	return ref{kind: kindBFDProfile, key: pools.ServiceKey{Name: o.Name}}, profileObject{
		bfd: view.BFD{Receive: interval(o.Spec.ReceiveInterval), Transmit: interval(o.Spec.TransmitInterval),
			Multiplier: uint8(cmp.Or(o.Spec.DetectMultiplier, 3)), Passive: o.Spec.PassiveMode},
		hops: uint8(value(o.Spec.MinimumTTL, 0)),
	}
}

func convertSecret(obj any) (ref, any) {
	o := obj.(*corev1.Secret)
	return ref{kind: kindSecret, key: pools.ServiceKey{Name: o.Name}}, secretObject{view.Secret(o.Data[corev1.BasicAuthPasswordKey])}
}

func convertBGPAdvertisement(obj any) (ref, any) {
	o := obj.(*v1alpha1.BGPAdvertisement)
	return ref{kind: kindBGPAdvertisement, key: pools.ServiceKey{Name: o.Name}}, adObjectOf(&o.Spec)
}

func adObjectOf(s *v1alpha1.BGPAdvertisementSpec) adObject {
	out := adObject{ad: view.BGPAdvertisement{
		Advertisement: view.Advertisement{
			Pools:         s.IPAddressPools,
			PoolSelectors: selectors(s.IPAddressPoolSelectors),
			Services:      selectors(s.ServiceSelectors),
			Nodes:         selectors(s.NodeSelectors),
		},
		Peers:      s.Peers,
		Length4:    cmp.Or(int(s.AggregationLength), 32), // as the schema's defaults: 0.0.0.0/0 is never advertised
		Length6:    cmp.Or(int(s.AggregationLengthV6), 128),
		Attributes: view.Attributes{LocalPref: uint32(value(s.LocalPref, 0))},
	}}
	for _, entry := range s.Communities {
		if v1alpha1.CommunityName(entry) {
			out.names = append(out.names, entry)
		} else if v, err := v1alpha1.ParseCommunity(entry); err == nil { // the schema accepts no others
			out.values = append(out.values, v)
		}
	}
	return out
}

func convertCommunity(obj any) (ref, any) {
	o := obj.(*v1alpha1.Community)
	out := map[string]v1alpha1.CommunityValue{}
	for _, c := range o.Spec.Communities {
		if v, err := v1alpha1.ParseCommunity(c.Value); err == nil {
			out[c.Name] = v
		}
	}
	return ref{kind: kindCommunity, key: pools.ServiceKey{Name: o.Name}}, out
}
