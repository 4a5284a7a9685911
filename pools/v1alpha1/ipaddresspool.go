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

// The rules below refuse errors that CEL can state in a line, for at most 128 entries because of their cost. Two ranges
// overlap if one contains the first address of the other; IPv4 addresses are compared as integers. The condition Ready
// reports the others: IPv6 ranges that end before they begin, overlap or contain reserved addresses between their ends,
// and unknown operators of selectors (docs/concepts/address-pools.md).

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
	// +kubebuilder:validation:XValidation:rule="[self.map(x, x.split('/')[0].split('-')[0].trim())].all(firsts, self.all(x, !isCIDR(x) || firsts.exists_one(f, cidr(x).containsIP(f))))",message="has a CIDR that overlaps another entry: list every address once"
	// +kubebuilder:validation:XValidation:rule="[self.filter(x, !x.contains(':')).map(x, [x.split('/')[0].split('-')[0], x.split('/')[0].split('-')[x.split('-').size()-1]].map(a, a.trim().split('.')).map(o, ((int(o[0])*256+int(o[1]))*256+int(o[2]))*256+int(o[3])))].all(ranges, ranges.all(x, ranges.exists_one(y, x[0] <= y[0] && y[0] <= x[1])))",message="has a range that overlaps another entry, or ends before it begins: list every address once, the lower end first"
	// +kubebuilder:validation:items:XValidation:rule="self == self.trim() && (self.contains('/') ? isCIDR(self) : self.split('-').size() <= 2 && self.split('-').all(a, isIP(a.trim())))",message="is not a CIDR, range or address: write it like 192.0.2.0/28, 192.0.2.10-192.0.2.20, 192.0.2.10 or 2001:db8::/64 (IPv4-mapped IPv6 as plain IPv4; no zone, no leading zeros)"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="has host bits set: write the network's own address, or a bare address or range"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self).prefixLength() > 0",message="is every address there is: list only those that are yours"
	// +kubebuilder:validation:items:XValidation:rule="self.contains('/') || !self.contains(':') || self.split('-').all(a, a.contains(':'))",message="has ends of different families: write both ends in IPv4, or both in IPv6"
	// +kubebuilder:validation:items:XValidation:rule="!self.startsWith('0.') && self.split('/')[0].split('-').all(a, !isIP(a.trim()) || ip(a.trim()).isGlobalUnicast())",message="has unspecified, loopback, link-local, multicast or broadcast addresses, which no Service can have: remove them"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self).prefixLength() == 0 || ['127.0.0.0', '169.254.0.0', '224.0.0.0', '255.255.255.255', 'fe80::', 'ff00::'].all(r, !cidr(self).containsIP(r))",message="contains loopback, link-local, multicast or broadcast addresses: list only those that are yours"
	// +kubebuilder:validation:items:XValidation:rule="self.contains(':') || !self.contains('-') || [[self.split('-')[0], self.split('-')[1]].map(a, a.trim().split('.')).map(o, ((int(o[0])*256+int(o[1]))*256+int(o[2]))*256+int(o[3]))].all(n, [2130706432, 2851995648, 3758096384].all(r, r <= n[0] || n[1] < r))",message="contains loopback, link-local or multicast addresses between its ends: write two ranges"
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

	// returnRoutes are the routers through which the answers of these addresses leave, where the default route of the
	// nodes leads elsewhere. A node uses the first one of each family whose gateway is on one of its networks; without
	// one, and absent, answers leave as the other packets of the node. With forwarding direct, Services with an endpoint
	// on a node without one fall back to pod.
	//
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(x, self.exists_one(y, x == y))",message="has an entry twice: list it once"
	// +listType=atomic
	// +optional
	ReturnRoutes []ReturnRoute `json:"returnRoutes,omitempty"`
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
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`

	// serviceSelectors select Services by label.
	//
	// +kubebuilder:validation:MaxItems=64
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

	// conditions of the pool: Ready, Overlapping, Exhausted, and, once they held, Draining and Withheld.
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
