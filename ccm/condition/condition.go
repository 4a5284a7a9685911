package condition

// Ready is the type of the condition that reports whether an object is in use as specified.
const Ready = "Ready"

// Reasons of the condition Ready that several kinds have in common.
const (
	ReasonRead            = "Read"
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonUnknownPool of an advertisement: a pool that it selects does not exist.
	ReasonUnknownPool = "UnknownPool"
	// ReasonUnknownInterface of an L2Advertisement: no node has one of its interfaces.
	ReasonUnknownInterface = "UnknownInterface"
	// ReasonRepeatedSelector: a selector is in its list twice.
	ReasonRepeatedSelector = "RepeatedSelector"
)

// Warnings is the type of the condition of a managed Service while there are warnings for its author. Most Services
// have none.
const Warnings = "ironlb.io/Warnings"

// Problem is a reason with its message.
type Problem struct{ Reason, Message string }
