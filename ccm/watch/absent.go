package watch

import (
	"time"
)

// AbsentFor is how long a speaker must be absent to count. A restarted or upgraded speaker returns earlier.
const AbsentFor = 30 * time.Second

// UnannouncedFor is how long an address may be unannounced before that is reported. Meanwhile the author creates an
// advertisement, a failover ends, or a Pod starts. A speaker reports once a second, and ironlb-ccm evaluates BGP as
// often: a user sees the report within ten seconds.
const UnannouncedFor = 7 * time.Second
