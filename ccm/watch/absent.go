package watch

import (
	"time"
)

// AbsentFor is how long a speaker must be absent to count. A restarted or upgraded speaker returns earlier.
const AbsentFor = 30 * time.Second
