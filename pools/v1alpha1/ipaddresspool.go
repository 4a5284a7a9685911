package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IPAddressPool is a set of addresses that Services of type LoadBalancer may be given.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ippool
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Auto-Assign",type=boolean,JSONPath=`.spec.autoAssign`
// +kubebuilder:printcolumn:name="Used-v4",type=integer,JSONPath=`.status.assignedIPv4`
// +kubebuilder:printcolumn:name="Free-v4",type=integer,JSONPath=`.status.availableIPv4`
// +kubebuilder:printcolumn:name="Used-v6",type=integer,JSONPath=`.status.assignedIPv6`
// +kubebuilder:printcolumn:name="Free-v6",type=integer,JSONPath=`.status.availableIPv6`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
type IPAddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPAddressPoolSpec   `json:"spec"`
	Status IPAddressPoolStatus `json:"status,omitempty"`
}

// The rules below refuse errors within one pool, within the cost that the API server allows (hence at most 128
// entries). The condition Ready reports three others: IPv6 ranges that overlap one another, a reversed IPv6 range whose
// ends are written with "::" in different places, and selectors with operators that there are not (Kubernetes' type
// sets no limit to their number, and so the cost has none). A CEL rule has no variables: self.split('-')[0].trim() is
// the first address of an entry, self.split('-')[1].trim() the last one of a range.

// IPAddressPoolSpec is what the operator wants.
//
// +kubebuilder:validation:XValidation:rule="!has(self.preemptDelay) || has(self.rebalance) && self.rebalance == 'gradual'",message="preemptDelay has no effect without rebalance: gradual: remove it, or write rebalance: gradual"
type IPAddressPoolSpec struct {
	// addresses of the pool: a CIDR (192.0.2.0/28), a range (192.0.2.10-192.0.2.20) or a single address, IPv4 and IPv6
	// mixed as you like. They are handed out in the order given, lowest first.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:XValidation:rule="self.all(x, self.exists_one(y, x == y))",message="has an entry twice: list it once"
	// +kubebuilder:validation:XValidation:rule="[self.filter(x, x.matches('^[0-9]+([.][0-9]+){3}') && !x.contains(':') && (x.contains('/') ? isCIDR(x) : isIP(x.split('-')[0].trim()) && isIP(x.split('-')[x.split('-').size() - 1].trim()))).map(x, [[x.split('/')[0].split('-')[0]].map(a, a.trim().split('.')).map(o, ((int(o[0]) * 256 + int(o[1])) * 256 + int(o[2])) * 256 + int(o[3]))[0], x.contains('/') ? [x.split('/')[0].split('-')[0]].map(a, a.trim().split('.')).map(o, ((int(o[0]) * 256 + int(o[1])) * 256 + int(o[2])) * 256 + int(o[3]))[0] + [4294967296,2147483648,1073741824,536870912,268435456,134217728,67108864,33554432,16777216,8388608,4194304,2097152,1048576,524288,262144,131072,65536,32768,16384,8192,4096,2048,1024,512,256,128,64,32,16,8,4,2,1][cidr(x).prefixLength()] - 1 : [x.split('-')[x.split('-').size() - 1]].map(a, a.trim().split('.')).map(o, ((int(o[0]) * 256 + int(o[1])) * 256 + int(o[2])) * 256 + int(o[3]))[0]])].all(r, r.all(a, a[0] > a[1] || r.exists_one(b, a[0] <= b[1] && b[0] <= a[1])))",message="has IPv4 entries that overlap: list every address once"
	// +kubebuilder:validation:XValidation:rule="self.all(x, !x.contains(':') || !isCIDR(x) || self.all(y, y == x || !y.contains(':') || (y.contains('/') ? !isCIDR(y) || !cidr(x).containsCIDR(y) : !isIP(y.split('-')[0].trim()) || !cidr(x).containsIP(y.split('-')[0].trim()))))",message="has an IPv6 entry contained in another one: list every address once"
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[0-9a-fA-F:.]+(/[0-9]+| *- *[0-9a-fA-F:.]+)?$') && (self.contains('/') ? isCIDR(self) : isIP(self.split('-')[0].trim()) && isIP(self.split('-')[self.split('-').size() - 1].trim()))",message="is not a CIDR, range or address: write it like 192.0.2.0/28, 192.0.2.10-192.0.2.20, 192.0.2.10 or 2001:db8::/64 (IPv4-mapped IPv6 as plain IPv4; no zone, no leading zeros)"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="has host bits set: write the network's own address, or a bare address or range"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self).prefixLength() > 0",message="is every address there is: list only those that are yours"
	// +kubebuilder:validation:items:XValidation:rule="self.contains('/') || !isIP(self.split('-')[0].trim()) || !isIP(self.split('-')[self.split('-').size() - 1].trim()) || ip(self.split('-')[0].trim()).family() == ip(self.split('-')[self.split('-').size() - 1].trim()).family()",message="has ends of different families: write both ends in IPv4, or both in IPv6"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^[0-9]+([.][0-9]+){3} *- *[0-9]+([.][0-9]+){3}$') || !isIP(self.split('-')[0].trim()) || !isIP(self.split('-')[self.split('-').size() - 1].trim()) || [[self.split('-')[0], self.split('-')[1]].map(a, a.trim().split('.')).map(o, ((int(o[0]) * 256 + int(o[1])) * 256 + int(o[2])) * 256 + int(o[3]))].all(n, n[0] <= n[1])",message="ends before it begins: write the lower address first"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^[^-/]*:[^-/]*-[^-/]*:[^-/]*$') || !isIP(self.split('-')[0].trim()) || !isIP(self.split('-')[1].trim()) || self.split('-')[0].trim().split(':').size() != self.split('-')[1].trim().split(':').size() || ![0,1,2,3,4,5,6,7].exists(i, i < self.split('-')[0].trim().split(':').size() && ('0000' + self.split('-')[0].trim().lowerAscii().split(':')[i]).substring(self.split('-')[0].trim().lowerAscii().split(':')[i].size()) > ('0000' + self.split('-')[1].trim().lowerAscii().split(':')[i]).substring(self.split('-')[1].trim().lowerAscii().split(':')[i].size()) && [0,1,2,3,4,5,6].all(j, j >= i || self.split('-')[0].trim().lowerAscii().split(':')[j] == self.split('-')[1].trim().lowerAscii().split(':')[j]))",message="ends before it begins: write the lower address first"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^[^-/]*:[^-/]*-[^-/]*:[^-/]*$') || !isIP(self.split('-')[0].trim()) || !isIP(self.split('-')[1].trim()) || self.split('-')[0].trim().split(':').size() <= self.split('-')[1].trim().split(':').size() || self.split('-')[0].trim().split('::').size() != 2 || self.split('-')[1].trim().split('::').size() != 2 || self.split('-')[0].trim().split('::')[0] != self.split('-')[1].trim().split('::')[0] || self.split('-')[0].trim().split('::')[1].startsWith('0')",message="ends before it begins: write the lower address first"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self).prefixLength() == 0 || ['0.0.0.0/8','127.0.0.0/8','169.254.0.0/16','224.0.0.0/4','255.255.255.255/32','::/127','fe80::/10','ff00::/8'].all(r, !cidr(r).containsCIDR(self) && !cidr(self).containsCIDR(r))",message="has unspecified, loopback, link-local, multicast or broadcast addresses, which no Service can have: remove them"
	// +kubebuilder:validation:items:XValidation:rule="self.contains('/') || !isIP(self.split('-')[0].trim()) || !isIP(self.split('-')[self.split('-').size() - 1].trim()) || ['0.0.0.0/8','127.0.0.0/8','169.254.0.0/16','224.0.0.0/4','255.255.255.255/32','::/127','fe80::/10','ff00::/8'].all(r, !cidr(r).containsIP(self.split('-')[0].trim()) && !cidr(r).containsIP(self.split('-')[self.split('-').size() - 1].trim()))",message="has unspecified, loopback, link-local, multicast or broadcast addresses, which no Service can have: remove them"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^[0-9]+([.][0-9]+){3} *- *[0-9]+([.][0-9]+){3}$') || !isIP(self.split('-')[0].trim()) || !isIP(self.split('-')[self.split('-').size() - 1].trim()) || [[self.split('-')[0], self.split('-')[1]].map(a, a.trim().split('.')).map(o, ((int(o[0]) * 256 + int(o[1])) * 256 + int(o[2])) * 256 + int(o[3]))].all(n, (n[1] < 2130706432 || n[0] > 2147483647) && (n[1] < 2851995648 || n[0] > 2852061183))",message="reaches over loopback (127.0.0.0/8) or link-local (169.254.0.0/16) addresses, which no Service can have: write two ranges"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^[^-/]*:[^-/]*-[^-/]*:[^-/]*$') || !isIP(self.split('-')[0].trim()) || !isIP(self.split('-')[self.split('-').size() - 1].trim()) || ip(self.split('-')[0].trim()) == ip(self.split('-')[self.split('-').size() - 1].trim()) || ['2000::/3','fc00::/7','64:ff9b::/16'].exists(c, cidr(c).containsIP(self.split('-')[0].trim()) && cidr(c).containsIP(self.split('-')[self.split('-').size() - 1].trim()))",message="is an IPv6 range outside global (2000::/3) and unique local (fc00::/7) addresses: write CIDRs instead"
	// +listType=atomic
	Addresses []string `json:"addresses"`

	// autoAssign false keeps the pool for Services that ask for it by name or for one of its addresses.
	//
	// +kubebuilder:default=true
	// +optional
	AutoAssign *bool `json:"autoAssign,omitempty"`

	// avoidBuggyIPs true never hands out IPv4 addresses that end in .0 or .255.
	//
	// +optional
	AvoidBuggyIPs bool `json:"avoidBuggyIPs,omitempty"`

	// serviceAllocation limits which Services may use the pool, and puts it before pools that have none.
	//
	// +optional
	ServiceAllocation *ServiceAllocation `json:"serviceAllocation,omitempty"`

	// sharing widens who may share one address.
	//
	// +optional
	Sharing *Sharing `json:"sharing,omitempty"`

	// reuseAfter is how long a freed address rests before auto-assignment gives it to another Service, for example 10m.
	// Default 0s.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative: write a duration of 0s or more, like 90s or 10m"
	// +optional
	ReuseAfter *metav1.Duration `json:"reuseAfter,omitempty"`

	// namespaceQuota is the most addresses that one namespace may hold from this pool. Absent: no limit.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	NamespaceQuota *int64 `json:"namespaceQuota,omitempty"`

	// rebalance selects whether addresses of this pool move to other nodes without need. never: only on request
	// (kubectl ironlb rebalance); a node that joins or returns takes nothing. gradual: to preferred and less loaded
	// nodes, one address at a time, each after the one before has arrived. Addresses that move together do so by the
	// policy that moves least.
	//
	// +kubebuilder:default=never
	// +optional
	Rebalance RebalancePolicy `json:"rebalance,omitempty"`

	// preemptDelay is how long a node and its speaker must have been ready and eligible without a break before
	// addresses move to it by rebalance: gradual, for example 90s. Default 5m. A request does not wait for it.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative: write a duration of 0s or more, like 90s or 10m"
	// +optional
	PreemptDelay *metav1.Duration `json:"preemptDelay,omitempty"`
}

// RebalancePolicy selects when addresses move to other nodes without need.
//
// +kubebuilder:validation:Enum=never;gradual
type RebalancePolicy string

const (
	// RebalanceNever moves only on request.
	RebalanceNever RebalancePolicy = "never"
	// RebalanceGradual moves one at a time to nodes that have been there for the preempt delay.
	RebalanceGradual RebalancePolicy = "gradual"
)

// DefaultPreemptDelay is the preemptDelay of a pool that names none.
const DefaultPreemptDelay = 5 * time.Minute

// ServiceAllocation selects the Services that may use a pool: those in one of the namespaces (listed or selected; none
// of either given: all) that match one of the service selectors (none given: all).
type ServiceAllocation struct {
	// priority of the pool among those that match a Service: lower first, 0 or absent last.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// namespaces whose Services may use the pool.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`

	// namespaceSelectors select namespaces by label, in addition to those listed. A selector that matches no namespace
	// accepts no namespace; an empty one ({}) matches every namespace.
	//
	// +listType=atomic
	// +optional
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`

	// serviceSelectors select Services by label.
	//
	// +listType=atomic
	// +optional
	ServiceSelectors []metav1.LabelSelector `json:"serviceSelectors,omitempty"`
}

// Sharing selects who may share an address besides Services of one namespace with the same ironlb.io/sharing-key.
type Sharing struct {
	// namespaces whose Services may share addresses of this pool with one another.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
}

// IPAddressPoolStatus is what the controller found.
type IPAddressPoolStatus struct {
	// assignedIPv4 is how many IPv4 addresses Services hold.
	AssignedIPv4 int64 `json:"assignedIPv4"`
	// assignedIPv6 is how many IPv6 addresses Services hold.
	AssignedIPv6 int64 `json:"assignedIPv6"`
	// availableIPv4 is how many IPv4 addresses are free, at most 9223372036854775807.
	AvailableIPv4 int64 `json:"availableIPv4"`
	// availableIPv6 is how many IPv6 addresses are free, at most 9223372036854775807.
	AvailableIPv6 int64 `json:"availableIPv6"`

	// lastGood is the spec that is in force while the present one cannot be read, as JSON.
	//
	// +optional
	LastGood string `json:"lastGood,omitempty"`

	// rebalanced is the value of the annotation ironlb.io/rebalance that has been carried out.
	//
	// +optional
	Rebalanced string `json:"rebalanced,omitempty"`

	// coolingDown are addresses that were freed less than spec.reuseAfter ago, the latest first: at most the 512
	// latest. The next leader continues from them.
	//
	// +kubebuilder:validation:MaxItems=512
	// +listType=map
	// +listMapKey=address
	// +optional
	CoolingDown []CoolingAddress `json:"coolingDown,omitempty"`

	// conditions of the pool: Ready, Overlapping, Exhausted, and, once they held, Draining and NodeAddresses.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MaxCoolingDown is how many addresses a pool's status.coolingDown has at most.
const MaxCoolingDown = 512

// CoolingAddress is a freed address that auto-assignment does not allocate yet.
type CoolingAddress struct {
	// address that was freed.
	//
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`

	// freed is when, rounded up to a second.
	Freed metav1.Time `json:"freed"`

	// freedBy is the Service, as namespace/name: it may have the address back at once.
	//
	// +kubebuilder:validation:MaxLength=317
	// +optional
	FreedBy string `json:"freedBy,omitempty"`
}

// IPAddressPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type IPAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPAddressPool `json:"items"`
}
