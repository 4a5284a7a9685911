package member

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// A datagram is a header, fields, and a tag over both. Numbers are in network order.
//
//	0  magic "IL"           8  cluster: first 8 bytes of SHA-256 of its id
//	2  version              16 incarnation: when the process began; grows from one to the next
//	3  length of the name   24 sequence: grows with each datagram of an incarnation
//	4  key id               32 node name, fields, tag
//
// A field is a type, its length in two bytes, and a value. There is one version. A datagram of another one is dropped and
// counted (DropVersion), so to each other their speakers are nodes without a speaker: a rolling upgrade between versions
// would give each address two owners. A change of the format therefore needs a new version, and its first release sends
// the previous one until it receives no speaker of that one any more.
const (
	// MaxDatagram fits the minimum MTU of IPv6 (RFC 8200 section 5) with room for a tunnel.
	MaxDatagram = 1200

	wireVersion = 1
	headerSize  = 32
	maxName     = 253 // of a Node: RFC 1123 subdomain
)

const (
	fieldHello = 1 // flags, interval and dead time in ms, version and digest of the claims
	// per segment: key, number of nodes received there (255: or more), MAC. Key 0: by their InternalIPs
	fieldSegments     = 2
	fieldClaims       = 3  // after version, up to version, entries
	fieldWant         = 4  // of node, after version, flags: request for its claims
	fieldRelayRequest = 5  // node, segment key: request for evidence that it is received there
	fieldRelay        = 6  // node, segment key, age in ms
	fieldNewer        = 7  // to node, incarnation: its own must be higher
	fieldSilent       = 8  // node, segment key: not received there
	fieldRetained     = 9  // of a goodbye: how long the node answers without its speaker, in ms
	fieldRan          = 10 // of a heartbeat: how long the process has run, ns of CLOCK_MONOTONIC_RAW
	fieldCluster      = 11 // digests of the cluster's certificate authorities
	fieldSlots        = 12 // of a heartbeat: digest of the slots of direct forwarding

	fieldChallenge = 13 // of node, nonce: request for a proof that its datagrams are no recording
	fieldProof     = 14 // to node, its nonce
	fieldPassedOn  = 15 // a datagram of another node, whose datagrams do not reach the receiver
	fieldMissed    = 16 // to node, node: the latter receives none of the sender's datagrams

	segmentSize, claimsSize, relayRequestSize, relaySize, silentSize, authoritySize = 15, 16, 16, 18, 16, 8

	fieldHeader = 3

	// envelope is the size of a datagram that passes on another one, with a name of 90 bytes: claims leave room for it.
	envelope = 200
)

const (
	flagObserver = 1 << iota
	flagLeaving
	flagEnded
	flagRetained // restarted: the node still answers for the claims of the previous process
	// Whether the node can receive packets through tunnels. With neither flag the last report stays: a new process does
	// not know yet. Both are malformed, as is the next flag without the first.
	flagDirect
	flagNotDirect
	flagDirectIPv4 // with flagDirect: packets of IPv4 virtual servers only
	// A routine heartbeat: it repeats the state of earlier ones, so its receiver may read it later. It belongs to the
	// datagram, not to the node's state.
	flagRoutine
)

const flagByGroup = 1 // of a want: answer to the group, because unicast does not arrive

type header struct {
	name                  []byte // in the datagram
	keyID                 [4]byte
	cluster               uint64
	incarnation, sequence uint64
}

// message is the fields of a datagram. Its slices are reused for the next one.
type message struct {
	sequence        uint64 // of its header
	flags           byte
	interval, dead  time.Duration
	version, digest uint64
	segments        []segment
	hasSegments     bool
	hasClaims       bool
	after, upTo     uint64
	entries         []entry
	want            want
	hasWant         bool
	relayRequests   []about
	relays          []relayEvidence
	silent          []about
	newer           struct{ to, incarnation uint64 }
	hasNewer        bool
	missed          about // its segment is a node
	// The segment of these is a nonce.
	challenge, proof       about
	hasChallenge, hasProof bool
	retained               time.Duration
	ran                    time.Duration
	hasRan                 bool
	authorities            []uint64
	slots                  uint64
	hasSlots               bool
	passedOn               []byte
}

type segment struct {
	key      uint64
	received uint8
	mac      [6]byte
}

// entry is a claim; state 0 means that the claim is removed.
type entry struct {
	id    view.VIPID
	claim view.Claim
}

type want struct {
	of, after uint64
	byGroup   bool
}

// about names a node on a segment; segment 0 is any path.
type about struct{ node, segment uint64 }

type relayEvidence struct {
	about
	age time.Duration
}

// keyring signs with its first key and accepts all of them, so that keys change without a gap: the new key is added
// second everywhere, then the two swap, then the old one is removed.
type keyring struct {
	keys []key
	sum  [sha256.Size]byte
}

type key struct {
	id   [4]byte
	hmac hash.Hash
}

var (
	errShort   = errors.New("too short or too long")
	errMagic   = errors.New("not a speaker's datagram")
	errVersion = errors.New("of another version")
	errField   = errors.New("a field is malformed")
)

func parseHeader(d []byte) (h header, body []byte, err error) {
	switch {
	case len(d) < headerSize+1+tagSize || len(d) > MaxDatagram:
		return h, nil, errShort
	case d[0] != 'I' || d[1] != 'L':
		return h, nil, errMagic
	case d[2] != wireVersion:
		return h, nil, errVersion
	}
	n := int(d[3])
	if n == 0 || n > maxName || headerSize+n+tagSize > len(d) {
		return h, nil, errShort
	}
	copy(h.keyID[:], d[4:8])
	h.cluster = binary.BigEndian.Uint64(d[8:])
	h.incarnation = binary.BigEndian.Uint64(d[16:])
	h.sequence = binary.BigEndian.Uint64(d[24:])
	h.name = d[headerSize : headerSize+n]
	return h, d[headerSize+n : len(d)-tagSize], nil
}

// appendHeader begins a datagram.
func appendHeader(b []byte, name string, keyID [4]byte, cluster, incarnation, sequence uint64) []byte {
	b = append(b, 'I', 'L', wireVersion, byte(len(name)))
	b = append(b, keyID[:]...)
	b = binary.BigEndian.AppendUint64(b, cluster)
	b = binary.BigEndian.AppendUint64(b, incarnation)
	b = binary.BigEndian.AppendUint64(b, sequence)
	return append(b, name...)
}

// parse reads the fields into m. Unknown content is an error.
func (m *message) parse(body []byte) error {
	*m = message{segments: m.segments[:0], entries: m.entries[:0], relayRequests: m.relayRequests[:0], relays: m.relays[:0],
		silent: m.silent[:0], authorities: m.authorities[:0]}
	var seen uint32
	for len(body) > 0 {
		if len(body) < fieldHeader {
			return errField
		}
		kind, n := body[0], int(binary.BigEndian.Uint16(body[1:]))
		if body = body[fieldHeader:]; n > len(body) {
			return errField
		}
		value := body[:n]
		body = body[n:]
		if kind == 0 || kind > fieldMissed || seen&(1<<kind) != 0 {
			return errField
		}
		seen |= 1 << kind
		if err := m.field(kind, value); err != nil {
			return err
		}
	}
	if seen&(1<<fieldHello) == 0 {
		return errField
	}
	return nil
}

// fieldSizes are the sizes of the fields that have a fixed one.
var fieldSizes = [...]int{
	fieldHello: 21, fieldWant: 17, fieldNewer: 16, fieldRetained: 4, fieldRan: 8, fieldSlots: 8,
	fieldChallenge: 16, fieldProof: 16, fieldMissed: 16,
}

func (m *message) field(kind byte, v []byte) error {
	if size := fieldSizes[kind]; size != 0 && len(v) != size {
		return errField
	}
	switch kind {
	case fieldHello:
		switch m.flags = v[0] &^ flagRoutine; m.flags & (flagDirect | flagNotDirect | flagDirectIPv4) {
		case 0, flagDirect, flagNotDirect, flagDirect | flagDirectIPv4:
		default:
			return errField
		}
		m.interval, m.dead = milliseconds(v[1:]), milliseconds(v[3:])
		m.version, m.digest = binary.BigEndian.Uint64(v[5:]), binary.BigEndian.Uint64(v[13:])
		if m.interval == 0 || m.dead < m.interval {
			return errField
		}
	case fieldWant:
		m.hasWant = true
		m.want = want{of: binary.BigEndian.Uint64(v), after: binary.BigEndian.Uint64(v[8:]), byGroup: v[16]&flagByGroup != 0}
	case fieldNewer:
		m.hasNewer = true
		m.newer.to, m.newer.incarnation = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
	case fieldChallenge:
		m.hasChallenge, m.challenge = true, parseAbout(v)
	case fieldProof:
		m.hasProof, m.proof = true, parseAbout(v)
	case fieldMissed:
		m.missed = parseAbout(v)
	case fieldRetained:
		m.retained = time.Duration(binary.BigEndian.Uint32(v)) * time.Millisecond
	case fieldRan:
		m.hasRan, m.ran = true, time.Duration(binary.BigEndian.Uint64(v)&(1<<63-1))
	case fieldSlots:
		m.hasSlots, m.slots = true, binary.BigEndian.Uint64(v)
	case fieldPassedOn:
		m.passedOn = v
	case fieldClaims:
		return m.claims(v)
	default:
		return m.list(kind, v)
	}
	return nil
}

func parseAbout(v []byte) about {
	return about{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}
}

// list reads a field that is a list of items of one size.
func (m *message) list(kind byte, v []byte) error {
	size := segmentSize
	switch kind {
	case fieldRelayRequest:
		size = relayRequestSize
	case fieldRelay:
		size = relaySize
	case fieldSilent:
		size = silentSize
	case fieldCluster:
		size = authoritySize
	}
	if len(v)%size != 0 {
		return errField
	}
	m.hasSegments = m.hasSegments || kind == fieldSegments
	for ; len(v) > 0; v = v[size:] {
		a, b := binary.BigEndian.Uint64(v), uint64(0)
		if size >= relayRequestSize {
			b = binary.BigEndian.Uint64(v[8:])
		}
		switch kind {
		case fieldSegments:
			m.segments = append(m.segments, segment{key: a, received: v[8], mac: [6]byte(v[9:])})
		case fieldRelayRequest:
			m.relayRequests = append(m.relayRequests, about{a, b})
		case fieldRelay:
			m.relays = append(m.relays, relayEvidence{about{a, b}, milliseconds(v[16:])})
		case fieldSilent:
			m.silent = append(m.silent, about{a, b})
		case fieldCluster:
			m.authorities = append(m.authorities, a)
		}
	}
	return nil
}

func (m *message) claims(v []byte) error {
	if len(v) < claimsSize {
		return errField
	}
	m.hasClaims = true
	m.after, m.upTo = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
	if m.after >= m.upTo {
		return errField
	}
	for v = v[claimsSize:]; len(v) > 0; {
		e, n := parseEntry(v)
		if n == 0 {
			return errField
		}
		m.entries = append(m.entries, e)
		v = v[n:]
	}
	return nil
}

// parseEntry returns the first entry and its length, 0 if it is malformed.
func parseEntry(v []byte) (e entry, n int) {
	if len(v) < 9 {
		return e, 0
	}
	e.id, e.claim.State = view.VIPID(binary.BigEndian.Uint64(v)), view.ClaimState(v[8])
	n = 9
	if e.claim.State == 0 {
		return e, n
	}
	if e.claim.State > view.Declined {
		return e, 0
	}
	generation, size := binary.Uvarint(v[n:])
	if size <= 0 || generation > 1<<63-1 {
		return e, 0
	}
	n += size
	rank, size := binary.Uvarint(v[n:])
	if size <= 0 || rank > 1<<16-1 {
		return e, 0
	}
	n += size
	e.claim.Generation, e.claim.Rank = int64(generation), uint16(rank)
	if e.claim.State != view.HandingOver {
		return e, n
	}
	if len(v) <= n || int(v[n]) > maxName || len(v) < n+1+int(v[n]) {
		return e, 0
	}
	size = int(v[n])
	e.claim.Successor = string(v[n+1 : n+1+size])
	return e, n + 1 + size
}

func appendEntry(b []byte, e entry) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(e.id))
	b = append(b, byte(e.claim.State))
	if e.claim.State == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(e.claim.Generation))
	b = binary.AppendUvarint(b, uint64(e.claim.Rank))
	if e.claim.State == view.HandingOver {
		b = append(b, byte(len(e.claim.Successor)))
		b = append(b, e.claim.Successor...)
	}
	return b
}

// beginField appends a field's header; endField sets its length once the value is appended.
func beginField(b []byte, kind byte) (grown []byte, at int) { return append(b, kind, 0, 0), len(b) }

func endField(b []byte, at int) []byte {
	binary.BigEndian.PutUint16(b[at+1:], uint16(len(b)-at-fieldHeader))
	return b
}

func milliseconds(v []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint16(v)) * time.Millisecond
}

// appendMilliseconds writes a duration, limited to the longest one that fits.
func appendMilliseconds(b []byte, d time.Duration) []byte {
	return binary.BigEndian.AppendUint16(b, uint16(min(max(d.Milliseconds(), 0), 1<<16-1)))
}

const (
	tagSize = 16
	// minKey is the shortest key: RFC 2104 section 3 discourages keys shorter than the hash, and 16 bytes from a random
	// source are what the tag can use.
	minKey = 16
	// maxKeys are the current key and the next or the previous one.
	maxKeys = 2
)

func newKeyring(secrets [][]byte) (*keyring, error) {
	if len(secrets) == 0 || len(secrets) > maxKeys {
		return nil, fmt.Errorf("%d keys for the speakers' datagrams: give one, or two while they change", len(secrets))
	}
	r := &keyring{}
	for i, secret := range secrets {
		if len(secret) < minKey {
			return nil, fmt.Errorf("key %d for the speakers' datagrams has %d bytes: give at least %d random ones", i+1, len(secret), minKey)
		}
		k := key{hmac: hmac.New(sha256.New, secret)}
		k.hmac.Write([]byte("ironlb key id"))
		copy(k.id[:], k.hmac.Sum(r.sum[:0]))
		r.keys = append(r.keys, k)
	}
	if len(r.keys) == 2 && r.keys[0].id == r.keys[1].id {
		return nil, errors.New("the two keys for the speakers' datagrams are the same: give one of them")
	}
	return r, nil
}

// tag appends the tag of data to it.
func (r *keyring) tag(data []byte) []byte { return append(data, r.compute(&r.keys[0], data)...) }

func (r *keyring) compute(k *key, data []byte) []byte {
	k.hmac.Reset()
	k.hmac.Write(data)
	return k.hmac.Sum(r.sum[:0])[:tagSize]
}

func (r *keyring) find(id [4]byte) *key {
	for i := range r.keys {
		if r.keys[i].id == id {
			return &r.keys[i]
		}
	}
	return nil
}

// valid reports whether the last bytes of a datagram are the tag of the rest.
func (r *keyring) valid(k *key, datagram []byte) bool {
	at := len(datagram) - tagSize
	return subtle.ConstantTimeCompare(r.compute(k, datagram[:at]), datagram[at:]) == 1
}

// Two clusters on one network may have the same name, and even the same key. The certificate authority of their API
// servers distinguishes them: each datagram carries its digest. During a rotation there are two certificates
// (Kubernetes: "Manual Rotation of CA Certificates"), and nodes receive them at different times. So one certificate in
// common is enough, and earlier ones count until the process ends, up to maxAuthorities.

// maxAuthorities is the number of digests in a datagram, and so the number that count.
const maxAuthorities = 3

// AuthorityKey returns the digest of a certificate in DER.
func AuthorityKey(certificate []byte) uint64 { return nodeID("authority " + string(certificate)) }

// SetAuthorities changes the digests of the cluster's certificate authority.
func (c *Core) SetAuthorities(now []uint64) {
	all := slices.Clone(now)
	for _, earlier := range c.authorities {
		if !slices.Contains(all, earlier) {
			all = append(all, earlier)
		}
	}
	c.authorities = all[:min(len(all), maxAuthorities)]
}

// appendCluster writes the digests of this node's cluster.
func (c *Core) appendCluster(b []byte) []byte {
	if len(c.authorities) == 0 {
		return b
	}
	b, at := beginField(b, fieldCluster)
	for _, a := range c.authorities {
		b = binary.BigEndian.AppendUint64(b, a)
	}
	return endField(b, at)
}

// foreign reports whether a message is from a cluster with another certificate authority. A speaker whose
// configuration has none sends none.
func (c *Core) foreign(m *message) bool {
	return len(m.authorities) > 0 && len(c.authorities) > 0 &&
		!slices.ContainsFunc(m.authorities, func(a uint64) bool { return slices.Contains(c.authorities, a) })
}
