package ccm

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// kindCases are specs. The refusal must contain field and message; without a field the spec is accepted.
var kindCases = []struct{ plural, spec, field, message string }{
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64512, peerAddress: "2001:db8::1"}`, "", ""},
	{"bgppeers", `{myASN: 4294967295, peerASN: 4200000000, peerAddress: 192.0.2.1}`, "", ""},
	{"bgppeers", `{myASN: 64512, dynamicASN: internal, peerAddress: 192.0.2.1}`, "", ""},
	{"bgppeers", `{myASN: 64512, dynamicASN: external, localASN: 65000, ebgpMultiHop: true, peerAddress: 192.0.2.1}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, localASN: 65000, peerAddress: 192.0.2.1, peerPort: 1790, sourceAddress: 192.0.2.10, holdTime: 9s, keepaliveTime: 3s,
		connectTime: 1m, routerID: 192.0.2.10, nodeSelectors: [{matchLabels: {kubernetes.io/hostname: a}}], passwordSecret: {name: tor}, bfdProfile: fast, ttlSecurity: true,
		gracefulRestart: true, restartTime: 1m30s, dualStackAddressFamily: true}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%eth0", ttlSecurity: true, bfdProfile: fast}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%bond0.1234"}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 169.254.1.1, ebgpMultiHop: false, ttlSecurity: true}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, ebgpMultiHop: true, ttlSecurity: false}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64512, peerAddress: 192.0.2.1, ttlSecurity: true}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 3s, keepaliveTime: 1s, connectTime: 65535s}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 65535s}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 90s, keepaliveTime: 30s}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, gracefulRestart: true, restartTime: 4095s}`, "", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 1h2m3s, routerID: 240.0.0.1}`, "", ""},

	{"bgppeers", `{}`, "spec.myASN", "Required value"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513}`, "spec.peerAddress", "Required value"},
	{"bgppeers", `{myASN: 0, peerASN: 64513, peerAddress: 192.0.2.1}`, "spec.myASN", "greater than or equal to 1"},
	{"bgppeers", `{myASN: 4294967296, peerASN: 64513, peerAddress: 192.0.2.1}`, "spec.myASN", "less than or equal to 4294967295"},
	{"bgppeers", `{myASN: 23456, peerASN: 64513, peerAddress: 192.0.2.1}`, "spec.myASN", "AS_TRANS"},
	{"bgppeers", `{myASN: 64512, peerASN: 0, peerAddress: 192.0.2.1}`, "spec.peerASN", "greater than or equal to 1"},
	{"bgppeers", `{myASN: 64512, peerASN: 23456, peerAddress: 192.0.2.1}`, "spec.peerASN", "AS_TRANS"},
	{"bgppeers", `{myASN: 64512, peerAddress: 192.0.2.1}`, "spec.peerASN", "is missing, and so is dynamicASN: write the router's AS number as peerASN"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, dynamicASN: external, peerAddress: 192.0.2.1}`, "spec.peerASN", "cannot be with dynamicASN"},
	{"bgppeers", `{myASN: 64512, dynamicASN: any, peerAddress: 192.0.2.1}`, "spec.dynamicASN", `"internal", "external"`},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, localASN: 64512, peerAddress: 192.0.2.1}`, "spec.localASN", "remove it"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, localASN: 64513, peerAddress: 192.0.2.1}`, "spec.localASN", "for external peers"},
	{"bgppeers", `{myASN: 64512, peerASN: 64512, localASN: 65000, peerAddress: 192.0.2.1}`, "spec.localASN", "for external peers"},
	{"bgppeers", `{myASN: 64512, dynamicASN: internal, localASN: 65000, peerAddress: 192.0.2.1}`, "spec.localASN", "for external peers"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, localASN: 23456, peerAddress: 192.0.2.1}`, "spec.localASN", "AS_TRANS"},

	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: router}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1/32}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.001}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "::ffff:192.0.2.1"}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%"}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%eth0%eth1"}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%eth 0"}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%abcdefghijklmnop"}`, "spec.peerAddress", "write it like 192.0.2.1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1"}`, "spec.peerAddress", "needs the interface"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "2001:db8::1%eth0"}`, "spec.peerAddress", "cannot have one otherwise"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "192.0.2.1%eth0"}`, "spec.peerAddress", "cannot have one otherwise"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 0.0.0.0}`, "spec.peerAddress", "write the address of the router"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 127.0.0.1}`, "spec.peerAddress", "write the address of the router"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 224.0.0.5}`, "spec.peerAddress", "write the address of the router"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 255.255.255.255}`, "spec.peerAddress", "write the address of the router"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "ff02::1"}`, "spec.peerAddress", "write the address of the router"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "::"}`, "spec.peerAddress", "write the address of the router"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, peerPort: 0}`, "spec.peerPort", "greater than or equal to 1"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, peerPort: 65536}`, "spec.peerPort", "less than or equal to 65535"},

	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, sourceAddress: eth0}`, "spec.sourceAddress", "is not an address"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, sourceAddress: "2001:db8::10"}`, "spec.sourceAddress", "not of the family"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "2001:db8::1", sourceAddress: 192.0.2.10}`, "spec.sourceAddress", "not of the family"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "2001:db8::1", sourceAddress: "2001:DB8:0::1"}`, "spec.sourceAddress", "is peerAddress"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "2001:db8::1", sourceAddress: "fe80::1"}`, "spec.sourceAddress", "write an address of the node"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%eth0", sourceAddress: "2001:db8::10"}`, "spec.sourceAddress", "remove it"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, sourceAddress: 127.0.0.1}`, "spec.sourceAddress", "write an address of the node"},

	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 0s}`, "spec.holdTime", "would never end"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 2s}`, "spec.holdTime", "between 3s and 65535s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 65536s}`, "spec.holdTime", "between 3s and 65535s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 90}`, "spec.holdTime", ""},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: "90"}`, "spec.holdTime", "write it like 90s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 3.5s}`, "spec.holdTime", "write it like 90s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 9000ms}`, "spec.holdTime", "write it like 90s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: -9s}`, "spec.holdTime", "write it like 90s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 9s, keepaliveTime: 4s}`, "spec.keepaliveTime", "third of holdTime"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 90s, keepaliveTime: 31s}`, "spec.keepaliveTime", "third of holdTime"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, keepaliveTime: 30s}`, "spec.keepaliveTime", "needs holdTime"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, keepaliveTime: 0s}`, "spec.keepaliveTime", "less than 1s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, keepaliveTime: 1.5s}`, "spec.keepaliveTime", "full seconds"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, connectTime: 0s}`, "spec.connectTime", "between 1s and 65535s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, connectTime: soon}`, "spec.connectTime", "write it like 10s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, gracefulRestart: true, restartTime: 4096s}`, "spec.restartTime", "between 1s and 4095s"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, restartTime: 60s}`, "spec.restartTime", "without gracefulRestart"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, gracefulRestart: false, restartTime: 60s}`, "spec.restartTime", "without gracefulRestart"},

	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, routerID: 0.0.0.0}`, "spec.routerID", "BGP identifier"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, routerID: "2001:db8::1"}`, "spec.routerID", "BGP identifier"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, passwordSecret: {}}`, "spec.passwordSecret.name", "Required value"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, passwordSecret: {name: Tor}}`, "spec.passwordSecret.name", "kubectl get secrets"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%eth0", passwordSecret: {name: tor}}`, "spec.passwordSecret", "link-local"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, bfdProfile: Fast}`, "spec.bfdProfile", "kubectl get bfdprofiles"},
	{"bgppeers", `{myASN: 64512, peerASN: 64512, peerAddress: 192.0.2.1, ebgpMultiHop: true}`, "spec.ebgpMultiHop", "for external peers"},
	{"bgppeers", `{myASN: 64512, dynamicASN: internal, peerAddress: 192.0.2.1, ebgpMultiHop: true}`, "spec.ebgpMultiHop", "for external peers"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, ebgpMultiHop: true, ttlSecurity: true}`, "spec.ebgpMultiHop", "cannot be with ttlSecurity"},
	{"bgppeers", `{myASN: 64512, peerASN: 64513, peerAddress: "fe80::1%eth0", ebgpMultiHop: true}`, "spec.ebgpMultiHop", "link-local"},

	{"bgpadvertisements", `{}`, "", ""},
	{"bgpadvertisements", `null`, "", ""},
	{"bgpadvertisements", `{aggregationLength: 24, aggregationLengthV6: 64, localPref: 200, communities: ["65535:65281", "0:0", "large:4294967295:0:1", no-export, rack_1.a], peers: [tor-a, tor.b],
		ipAddressPools: [web], ipAddressPoolSelectors: [{matchLabels: {tier: gold}}], serviceSelectors: [{}], nodeSelectors: [{matchLabels: {rack: a}}]}`, "", ""},
	{"bgpadvertisements", `{aggregationLength: 1, aggregationLengthV6: 1, localPref: 4294967295}`, "", ""},
	{"bgpadvertisements", `{aggregationLength: 0}`, "spec.aggregationLength", "greater than or equal to 1"},
	{"bgpadvertisements", `{aggregationLength: 33}`, "spec.aggregationLength", "less than or equal to 32"},
	{"bgpadvertisements", `{aggregationLengthV6: 0}`, "spec.aggregationLengthV6", "greater than or equal to 1"},
	{"bgpadvertisements", `{aggregationLengthV6: 129}`, "spec.aggregationLengthV6", "less than or equal to 128"},
	{"bgpadvertisements", `{localPref: 0}`, "spec.localPref", "greater than or equal to 1"},
	{"bgpadvertisements", `{localPref: 4294967296}`, "spec.localPref", "less than or equal to 4294967295"},
	{"bgpadvertisements", `{communities: ["65000:1", "65000:1"]}`, "spec.communities[1]", "Duplicate"},
	{"bgpadvertisements", `{communities: ["65536:1"]}`, "spec.communities[0]", "up to 65535"},
	{"bgpadvertisements", `{communities: ["1:99999"]}`, "spec.communities[0]", "up to 65535"},
	{"bgpadvertisements", `{communities: ["large:4294967296:0:0"]}`, "spec.communities[0]", "4294967295"},
	{"bgpadvertisements", `{communities: ["large:1:2:99999999999"]}`, "spec.communities[0]", "write it like 65000:1"},
	{"bgpadvertisements", `{communities: ["large:1:2"]}`, "spec.communities[0]", "write it like 65000:1"},
	{"bgpadvertisements", `{communities: ["1:2:3"]}`, "spec.communities[0]", "write it like 65000:1"},
	{"bgpadvertisements", `{communities: ["065000:1"]}`, "spec.communities[0]", "write it like 65000:1"},
	{"bgpadvertisements", `{communities: ["12345"]}`, "spec.communities[0]", "write it like 65000:1"},
	{"bgpadvertisements", `{communities: ["no export"]}`, "spec.communities[0]", "write it like 65000:1"},
	{"bgpadvertisements", `{peers: [tor, tor]}`, "spec.peers[1]", "Duplicate"},
	{"bgpadvertisements", `{peers: [Tor]}`, "spec.peers[0]", "kubectl get bgpp"},
	{"bgpadvertisements", `{ipAddressPools: [Web]}`, "spec.ipAddressPools[0]", "kubectl get ippool"},

	{"bfdprofiles", `{}`, "", ""},
	{"bfdprofiles", `null`, "", ""},
	{"bfdprofiles", `{receiveInterval: 10, transmitInterval: 60000, detectMultiplier: 255, passiveMode: true, minimumTtl: 1}`, "", ""},
	{"bfdprofiles", `{receiveInterval: 100, transmitInterval: 100, detectMultiplier: 2, minimumTtl: 255}`, "", ""},
	{"bfdprofiles", `{receiveInterval: 9}`, "spec.receiveInterval", "greater than or equal to 10"},
	{"bfdprofiles", `{receiveInterval: 60001}`, "spec.receiveInterval", "less than or equal to 60000"},
	{"bfdprofiles", `{transmitInterval: 0}`, "spec.transmitInterval", "greater than or equal to 10"},
	{"bfdprofiles", `{transmitInterval: 60001}`, "spec.transmitInterval", "less than or equal to 60000"},
	{"bfdprofiles", `{detectMultiplier: 1}`, "spec.detectMultiplier", "greater than or equal to 2"},
	{"bfdprofiles", `{detectMultiplier: 256}`, "spec.detectMultiplier", "less than or equal to 255"},
	{"bfdprofiles", `{minimumTtl: 0}`, "spec.minimumTtl", "greater than or equal to 1"},
	{"bfdprofiles", `{minimumTtl: 256}`, "spec.minimumTtl", "less than or equal to 255"},

	{"communities", `{}`, "", ""},
	{"communities", `{communities: [{name: no-export, value: "65535:65281"}, {name: Rack_1, value: "large:64512:1:4294967295"}]}`, "", ""},
	{"communities", `{communities: [{name: a, value: "1:1"}, {name: a, value: "1:2"}]}`, "spec.communities[1]", "Duplicate"},
	{"communities", `{communities: [{name: "1:1", value: "1:1"}]}`, "spec.communities[0].name", "begin it with a letter"},
	{"communities", `{communities: [{name: "-a", value: "1:1"}]}`, "spec.communities[0].name", "begin it with a letter"},
	{"communities", `{communities: [{name: a, value: b}]}`, "spec.communities[0].value", ""},
	{"communities", `{communities: [{name: a, value: no-export}]}`, "spec.communities[0].value", "is not a community"},
	{"communities", `{communities: [{name: a, value: "1:65536"}]}`, "spec.communities[0].value", "up to 65535"},
	{"communities", `{communities: [{name: a, value: "large:1:2:4294967296"}]}`, "spec.communities[0].value", "4294967295"},
	{"communities", `{communities: [{name: a, value: "01:2"}]}`, "spec.communities[0].value", "is not a community"},

	{"l2advertisements", `{}`, "", ""},
	{"l2advertisements", `{ipAddressPools: [web, a.b-c], ipAddressPoolSelectors: [{matchLabels: {tier: gold}}, {}],
		serviceSelectors: [{matchExpressions: [{key: app, operator: Exists}]}], nodeSelectors: [{matchLabels: {rack: a}}], interfaces: [eth0, vlan.7],
		preferredNodeSelectors: [{weight: 1, preference: {matchLabels: {rack: a}}}, {weight: 100, preference: {matchExpressions: [{key: old, operator: DoesNotExist}]}}]}`, "", ""},
	{"l2advertisements", `{ipAddressPools: [Web]}`, "spec.ipAddressPools[0]", `Invalid value: "Web": is no name that an IPAddressPool can have`},
	{"l2advertisements", `{interfaces: [lo]}`, "spec.interfaces[0]", `Invalid value: "lo": has no neighbors: name the interface towards the clients`},
	{"l2advertisements", `{interfaces: [a/b]}`, "spec.interfaces[0]", "is not an interface name"},
	{"l2advertisements", `{preferredNodeSelectors: [{weight: 0, preference: {matchLabels: {rack: a}}}]}`, "spec.preferredNodeSelectors[0].weight", "Invalid value: 0"},
	{"l2advertisements", `{preferredNodeSelectors: [{weight: 101, preference: {matchLabels: {rack: a}}}]}`, "spec.preferredNodeSelectors[0].weight", "Invalid value: 101"},
	{"l2advertisements", `{preferredNodeSelectors: [{weight: 5, preference: {}}]}`, "spec.preferredNodeSelectors[0].preference", "matches every node, and so prefers none: write matchLabels or matchExpressions"},
	{"l2advertisements", `{preferredNodeSelectors: [{weight: 5}]}`, "spec.preferredNodeSelectors[0].preference", "Required value"},

	{"ipaddresspools", `{addresses: [192.0.2.0/28], rebalance: never}`, "", ""},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], rebalance: gradual}`, "", ""},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], rebalance: gradual, preemptDelay: 90s}`, "", ""},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], rebalance: gradual, preemptDelay: -1s}`, "spec.preemptDelay", `Invalid value: "-1s": is negative`},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], rebalance: always}`, "spec.rebalance", `supported values: "never", "gradual"`},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], preemptDelay: 90s}`, "spec", "preemptDelay has no effect without rebalance: gradual"},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], rebalance: never, preemptDelay: 90s}`, "spec", "preemptDelay has no effect without rebalance: gradual"},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 192.0.2.254}, {gateway: "fe80::1", interface: eth1.100}]}`, "", ""},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 192.0.2.254}, {gateway: 192.0.2.254}]}`, "spec.returnRoutes", "has an entry twice"},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: router}]}`, "spec.returnRoutes[0].gateway", "is no IP address: write the address of the router"},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 169.254.0.1}]}`, "spec.returnRoutes[0].gateway", "is no address that a router has"},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 224.0.0.1}]}`, "spec.returnRoutes[0].gateway", "is no address that a router has"},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: "fe80::1"}]}`, "spec.returnRoutes[0]", "write interface, too"},
	{"ipaddresspools", `{addresses: [192.0.2.0/28], returnRoutes: [{gateway: 192.0.2.254, interface: lo}]}`, "spec.returnRoutes[0].interface", "is not the name of an interface"},
}

// kinds are the kinds by the names of their resources.
var kinds = map[string]func() (kind string, into any){
	"bgppeers":          func() (string, any) { return "BGPPeer", &v1alpha1.BGPPeer{} },
	"bgpadvertisements": func() (string, any) { return "BGPAdvertisement", &v1alpha1.BGPAdvertisement{} },
	"bfdprofiles":       func() (string, any) { return "BFDProfile", &v1alpha1.BFDProfile{} },
	"communities":       func() (string, any) { return "Community", &v1alpha1.Community{} },
	"l2advertisements":  func() (string, any) { return "L2Advertisement", &v1alpha1.L2Advertisement{} },
	"ipaddresspools":    func() (string, any) { return "IPAddressPool", &v1alpha1.IPAddressPool{} },
}

// TestKinds: unsupported values are refused at admission, with an error that names the field and the fix. Accepted
// objects are readable.
func TestKinds(t *testing.T) {
	f := use(t, "")
	for _, tt := range kindCases {
		kind, into := kinds[tt.plural]()
		body, err := yaml.YAMLToJSON(fmt.Appendf(nil, "{apiVersion: ironlb.io/v1alpha1, kind: %s, metadata: {name: test}, spec: %s}", kind, tt.spec))
		if err != nil {
			t.Fatalf("%s: %v", tt.spec, err)
		}
		answer := f.Kube.CoreV1().RESTClient().Post().AbsPath(api, tt.plural).SetHeader("Content-Type", "application/json").
			Param("dryRun", "All").Param("fieldValidation", "Strict").Body(body).Do(f.ctx)
		err = answer.Error()
		switch {
		case tt.field == "" && err != nil:
			t.Errorf("%s %s is refused: %v", kind, tt.spec, err)
		case tt.field == "":
			stored, err := answer.Raw()
			if err == nil {
				err = json.Unmarshal(stored, into)
			}
			if err != nil {
				t.Errorf("%s %s is accepted and cannot be read: %v", kind, tt.spec, err)
			}
			checkDefaults(t, tt.spec, into)
		case err == nil:
			t.Errorf("%s %s is accepted; want an error with %s", kind, tt.spec, tt.field)
		case !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.field+": ") || !strings.Contains(err.Error(), tt.message):
			t.Errorf("%s %s: the refusal does not name %s with %q: %v", kind, tt.spec, tt.field, tt.message, err)
		}
	}
}

// checkDefaults checks the defaults of an empty or small spec.
func checkDefaults(t *testing.T, spec string, stored any) {
	t.Helper()
	small := spec == "{}" || spec == "null"
	switch o := stored.(type) {
	case *v1alpha1.BGPPeer:
		if o.Spec.PeerPort != 179 && !strings.Contains(spec, "peerPort") {
			t.Errorf("%s has port %d", spec, o.Spec.PeerPort)
		}
	case *v1alpha1.BGPAdvertisement:
		if small && (o.Spec.AggregationLength != 32 || o.Spec.AggregationLengthV6 != 128) {
			t.Errorf("%s has aggregation lengths %d, %d", spec, o.Spec.AggregationLength, o.Spec.AggregationLengthV6)
		}
	case *v1alpha1.BFDProfile:
		if s := o.Spec; small && (s.ReceiveInterval != 300 || s.TransmitInterval != 300 || s.DetectMultiplier != 3 || s.MinimumTTL != nil) {
			t.Errorf("%s is %+v", spec, s)
		}
	}
}

// TestMemberStates: the status of a speaker has only the states of members that a speaker reports.
func TestMemberStates(t *testing.T) {
	f := use(t, "")
	f.apply("{apiVersion: ironlb.io/v1alpha1, kind: SpeakerStatus, metadata: {name: a}}")
	const status = `{"status": {"dataPlane": {"healthy": true, "reason": "Programmed"}, "virtualIPs": 2, "interfaces": [{"name": "eth0", "subnets": ["192.0.2.0/24"], "up": true}],
		"alive": "1/2", "members": [{"node": "b", "state": "%s", "since": "2026-01-01T00:00:00Z"}, {"node": "c", "state": "Silent"}], "updated": "2026-01-01T00:00:00Z"}}`
	for state, refused := range map[string]bool{"Alive": false, "Isolated": false, "Observer": false, "Leaving": false, "Dead": true} {
		err := f.Kube.Discovery().RESTClient().Patch(types.MergePatchType).AbsPath(api, "speakerstatuses/a/status").
			Body([]byte(fmt.Sprintf(status, state))).Do(f.ctx).Error()
		if (err != nil) != refused {
			t.Errorf("a member in state %s: %v; refused is %v", state, err, refused)
		}
	}
}
