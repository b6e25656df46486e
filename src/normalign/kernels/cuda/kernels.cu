// Steps of a kernel machine on a CUDA device that a library does in too many launches.
//
// A diagonal block is factorised *and* inverted by one launch, tile by tile of 128 rows.
// What makes that little code is that the factor L and the transposed inverse L^-T are
// swept together: with the identity beside the matrix, both grow by the same product.
// Let V be all rows' columns of the present tile, rows below it taken from the matrix,
// rows above it and its own from the transposed inverse, each times the inverse of the
// tile. Then entry (r, c) of what remains, of the matrix for c behind the tile and of
// the inverse for all others, falls by V_r . V_c. The same inside a tile, with 32 x 32
// blocks that one warp does in registers.
//
// Then solutions, numbers cut into parts for tensor cores, and kernel values and slopes
// of squared distances. Python's side of all this is kernels.py.

typedef unsigned short half_bits;
typedef unsigned int word;

constexpr int TILE = 128, PITCH = TILE + 4;  // four more: rows start at other banks
constexpr int SUB = 32, SUB_PITCH = SUB + 4, BLOCKS = TILE / SUB;
constexpr int THREADS = 512, WARPS = THREADS / 32;

extern __shared__ float4 raw[];

struct Block {
  float* matrix;   // the lower half becomes the factor
  float* turned;   // the upper half becomes the transposed inverse
  int size, pitch;
};

__device__ __forceinline__ float4 four(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}

__device__ __forceinline__ void scale_add(float4& sum, float x, float4 v) {
  sum.x = fmaf(x, v.x, sum.x);
  sum.y = fmaf(x, v.y, sum.y);
  sum.z = fmaf(x, v.z, sum.z);
  sum.w = fmaf(x, v.w, sum.w);
}

__device__ __forceinline__ bool aligned(const float* from, int pitch) {
  return ((pitch & 3) == 0) && ((reinterpret_cast<size_t>(from) & 15) == 0);
}

// Into shared memory without a stop, or zeros; past the first cache, in which what
// other multiprocessors have written is not seen.
__device__ __forceinline__ void copy_four(float* to, const float* from, bool inside) {
  word address = (word)__cvta_generic_to_shared(to);
  int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
               "l"(from), "r"(bytes));
}

__device__ __forceinline__ void copied() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

// Some rows of 128 columns into shared memory, zeros where there are none.
template <int count, int to_pitch>
__device__ __forceinline__ void copy_rows(float* to, const float* from, int pitch,
                                          int rows, int width) {
  if (width >= TILE && aligned(from, pitch)) {
#pragma unroll
    for (int i = threadIdx.x; i < count * (TILE / 4); i += THREADS) {
      int r = i / (TILE / 4), c = 4 * (i % (TILE / 4));
      bool inside = r < rows;
      copy_four(to + r * to_pitch + c, inside ? from + (size_t)r * pitch + c : from,
                inside);
    }
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < count * TILE; i += THREADS) {
      int r = i / TILE, c = i % TILE;
      bool inside = r < rows && c < width;
      to[r * to_pitch + c] = inside ? __ldcg(from + (size_t)r * pitch + c) : 0.0f;
    }
  }
}

__device__ __forceinline__ float reciprocal(float x) {
  float over;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(over) : "f"(x));
  return fmaf(over, fmaf(-x, over, 1.0f), over);
}

__device__ __forceinline__ float reciprocal_root(float x) {
  float root;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return fmaf(root, fmaf(-0.5f * x * root, root, 0.5f), root);
}

// Eight columns of a 32 x 32 block, of which WIDTH are left. After each of them both
// arrays move on by one, so that the code is a short loop over fixed registers. What
// the next column needs is done first, so that the rest hides how long that takes.
template <int WIDTH>
__device__ __forceinline__ void eight_columns(float (&row)[SUB], float (&inverse)[SUB],
                                              float& pivot, float& over, float& own,
                                              float* block, float* turned,
                                              float* shared, int lane) {
#pragma unroll 1
  for (int j = SUB - WIDTH; j < SUB - WIDTH + 8; ++j) {
    const float column = row[0], first = inverse[0];
    const float left = -column * over, right = -first * over;
    const float* others = shared + j % 2 * SUB;
    float* next = shared + (j + 1) % 2 * SUB;
    own = lane == j ? pivot : own;
    float4 v = four(others);
    row[0] = fmaf(left, v.x, row[1]);
    inverse[0] = fmaf(v.x, right, inverse[1]);
    next[(lane - j - 2) & 31] = row[0];  // what is right of j + 1 begins at zero
    pivot = __shfl_sync(0xffffffffu, row[0], (j + 1) & 31);
    over = reciprocal(pivot);
#pragma unroll
    for (int c = 0; c < WIDTH; c += 4) {
      if (c) v = four(others + c);
      float other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int q = 0; q < 4; ++q)
        if (c + q > 0 && c + q + 1 < WIDTH) {
          row[c + q] = fmaf(left, other[q], row[c + q + 1]);
          inverse[c + q] = fmaf(other[q], right, inverse[c + q + 1]);
        }
    }
    block[lane * PITCH + j] = column;
    turned[lane * SUB_PITCH + j] = first;
    __syncwarp();
  }
}

// One warp: a 32 x 32 block in registers, a row of the matrix and a column of the
// inverse for each lane. The inverse is left transposed, with zeros where it has none.
// Columns are divided by the roots of their pivots at last, all at once.
__device__ __forceinline__ void factorise_sub(float* block, float* turned,
                                              float* shared, int lane, int* failure) {
  float row[SUB], inverse[SUB];
#pragma unroll
  for (int c = 0; c < SUB; c += 4) {
    float4 v = four(block + lane * PITCH + c);
    row[c] = v.x, row[c + 1] = v.y, row[c + 2] = v.z, row[c + 3] = v.w;
  }
#pragma unroll
  for (int c = 0; c < SUB; ++c) inverse[c] = c == lane ? 1.0f : 0.0f;
  float pivot = __shfl_sync(0xffffffffu, row[0], 0), own = pivot;
  float over = reciprocal(pivot);
  shared[(lane - 1) & 31] = row[0];
  __syncwarp();
  eight_columns<32>(row, inverse, pivot, over, own, block, turned, shared, lane);
  eight_columns<24>(row, inverse, pivot, over, own, block, turned, shared, lane);
  eight_columns<16>(row, inverse, pivot, over, own, block, turned, shared, lane);
  eight_columns<8>(row, inverse, pivot, over, own, block, turned, shared, lane);
  if (!(own > 1e-37f)) *failure = 1;  // NaN, too
  shared[lane] = reciprocal_root(own);
  __syncwarp();
#pragma unroll 2
  for (int c = 0; c < SUB; c += 4) {
    float4 root = four(shared + c);
    float4* at = reinterpret_cast<float4*>(block + lane * PITCH + c);
    float4* turned_at = reinterpret_cast<float4*>(turned + lane * SUB_PITCH + c);
    float4 v = *at, w = *turned_at;
    v.x = c <= lane ? v.x * root.x : 0.0f, w.x = c >= lane ? w.x * root.x : 0.0f;
    v.y = c < lane ? v.y * root.y : 0.0f, w.y = c + 1 >= lane ? w.y * root.y : 0.0f;
    v.z = c + 1 < lane ? v.z * root.z : 0.0f, w.z = c + 2 >= lane ? w.z * root.z : 0.0f;
    v.w = c + 2 < lane ? v.w * root.w : 0.0f, w.w = c + 3 >= lane ? w.w * root.w : 0.0f;
    *at = v, *turned_at = w;
  }
}

// A tile on the diagonal, and its inverse, transposed. In shared memory the matrix has
// the lower half and the transposed inverse the upper one; the 32 x 32 blocks on the
// diagonal have a place of their own for the latter.
__device__ __noinline__ void factorise_tile(Block block, int place, int* failure) {
  float* tile = reinterpret_cast<float*>(raw);
  float* corners = tile + TILE * PITCH;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int size = min(TILE, block.size - place);
  float* matrix = block.matrix + (size_t)place * block.pitch + place;
  float* turned = block.turned + (size_t)place * block.size + place;

  copy_rows<TILE, PITCH>(tile, matrix, block.pitch, size, size);
  copied();
  // the inverse begins as zeros, right of each block; beyond the matrix is an identity
  for (int i = thread; i < (TILE - SUB) * (TILE / 4); i += THREADS) {
    int r = i / (TILE / 4), c = 4 * (i % (TILE / 4));
    float4 zeros = {0.0f, 0.0f, 0.0f, 0.0f};
    if (c / SUB > r / SUB) *reinterpret_cast<float4*>(tile + r * PITCH + c) = zeros;
  }
  if (thread >= size && thread < TILE) tile[thread * (PITCH + 1)] = 1.0f;
  __syncthreads();

  // Before the first block there is nothing to divide and nothing to subtract. Eight
  // warps or sixteen for these, one for the block itself: were the others at work then,
  // that one would wait for shared memory longer than their work takes.
  for (int b = -1; b < BLOCKS; ++b) {
    const int next = b + 1;
    const float* corner = corners + b * SUB * SUB_PITCH;
    float* columns = tile + b * SUB;
    if (b >= 0) {
      {  // all other rows times the inverse: four columns a warp, four rows a lane
        const bool busy = warp < SUB / 4 && lane < (TILE - SUB) / 4;
        float* rows[4];
        float4 sums[4] = {};
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          int r = lane % 24 + 24 * p;
          rows[p] = columns + (r + (r >= b * SUB ? SUB : 0)) * PITCH;
        }
        if (busy) {
#pragma unroll 1
          for (int m = 0; m <= 4 * warp; m += 4) {
            const float* other = corner + m * SUB_PITCH + 4 * warp;
            float4 v[4];
#pragma unroll
            for (int p = 0; p < 4; ++p) v[p] = four(rows[p] + m);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
              scale_add(sums[p], v[p].x, four(other));
              scale_add(sums[p], v[p].y, four(other + SUB_PITCH));
              scale_add(sums[p], v[p].z, four(other + 2 * SUB_PITCH));
              scale_add(sums[p], v[p].w, four(other + 3 * SUB_PITCH));
            }
          }
        }
        __syncthreads();
        if (busy) {
#pragma unroll
          for (int p = 0; p < 4; ++p)
            *reinterpret_cast<float4*>(rows[p] + 4 * warp) = sums[p];
        }
      }
      __syncthreads();
      if (next == BLOCKS) break;
      int unit = 0;  // what remains, a 32 x 32 block for each warp
      for (int i = next; i < BLOCKS; ++i)
        for (int j = 0; j <= i; ++j, ++unit) {
          if (unit % WARPS != warp) continue;
          const int r = i * SUB + lane / 8, c = lane % 8;
          const float* left = columns + r * PITCH;
          const float* right =
              j == b ? corner + c * SUB_PITCH : columns + (j * SUB + c) * PITCH;
          const int step = j == b ? SUB_PITCH : PITCH;
          float sums[8][4] = {};
#pragma unroll 2
          for (int m = 0; m < SUB; m += 4) {
            float4 others[4];
#pragma unroll
            for (int q = 0; q < 4; ++q) others[q] = four(right + 8 * q * step + m);
#pragma unroll
            for (int p = 0; p < 8; ++p) {
              float4 v = four(left + 4 * p * PITCH + m);
#pragma unroll
              for (int q = 0; q < 4; ++q) sums[p][q] = dot(v, others[q], sums[p][q]);
            }
          }
#pragma unroll
          for (int p = 0; p < 8; ++p)
#pragma unroll
            for (int q = 0; q < 4; ++q) {
              int at = r + 4 * p, to = j * SUB + c + 8 * q;
              float* target = j > b ? tile + at * PITCH + to : tile + to * PITCH + at;
              *target -= sums[p][q];
            }
        }
      __syncthreads();
    }
    if (warp == 0)
      factorise_sub(tile + next * SUB * (PITCH + 1), corners + next * SUB * SUB_PITCH,
                    corners + TILE * SUB_PITCH, lane, failure);
    __syncthreads();
  }

  // What is above the diagonal of the matrix may be overwritten by anything.
  const bool wide =
      size == TILE && aligned(matrix, block.pitch) && aligned(turned, block.size);
  for (int i = thread; i < TILE * (TILE / 4); i += THREADS) {
    int r = i / (TILE / 4), c = 4 * (i % (TILE / 4));
    float4 value = four(tile + r * PITCH + c), other = {0.0f, 0.0f, 0.0f, 0.0f};
    if (r / SUB == c / SUB)
      other = four(corners + (c / SUB * SUB + r % SUB) * SUB_PITCH + c % SUB);
    else if (c > r)
      other = value;
    float* at = matrix + (size_t)r * block.pitch + c;
    float* turned_at = turned + (size_t)r * block.size + c;
    if (wide) {
      *reinterpret_cast<float4*>(at) = value;
      *reinterpret_cast<float4*>(turned_at) = other;
    } else if (r < size) {
      float values[4] = {value.x, value.y, value.z, value.w};
      float others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int q = 0; q < 4; ++q)
        if (c + q < size) at[q] = values[q], turned_at[q] = others[q];
    }
  }
}

// Sixteen rows, none of the tile's own, times its inverse. A warp does 32 columns and
// a fourth of the sum, 4 x 4 entries a lane.
__device__ __noinline__ void divide_rows(Block block, int place, int group) {
  float* inverse = reinterpret_cast<float*>(raw);
  float* rows = inverse + TILE * TILE;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int width = min(TILE, block.size - place);
  int first = group * 16;
  first += first >= place ? TILE : 0;
  const bool above = first < place;
  const int pitch = above ? block.size : block.pitch;
  float* here = (above ? block.turned : block.matrix) + (size_t)first * pitch + place;
  const float* corner = block.turned + (size_t)place * block.size + place;
  const int count = min(16, block.size - first);

  copy_rows<TILE, TILE>(inverse, corner, block.size, width, width);
  copy_rows<16, TILE>(rows, here, pitch, count, width);
  copied();
  const int strip = warp % 4 * SUB, slice = warp / 4;
  const int row = lane / 8, column = strip + 4 * (lane % 8);
  float4 sums[4] = {};
#pragma unroll 2
  for (int m = 4 * slice; m < strip + SUB; m += 16) {  // below that are zeros
    const float* other = inverse + m * TILE + column;
    float4 v[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) v[p] = four(rows + (row + 4 * p) * TILE + m);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      scale_add(sums[p], v[p].x, four(other));
      scale_add(sums[p], v[p].y, four(other + TILE));
      scale_add(sums[p], v[p].z, four(other + 2 * TILE));
      scale_add(sums[p], v[p].w, four(other + 3 * TILE));
    }
  }
  __syncthreads();
  float* parts = inverse;  // no longer needed
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    float* at = parts + (slice * 16 + row + 4 * p) * TILE + column;
    *reinterpret_cast<float4*>(at) = sums[p];
  }
  __syncthreads();
  const int r = thread / 32, c = 4 * lane;
  float4 sum = four(parts + r * TILE + c);
#pragma unroll
  for (int i = 1; i < 4; ++i)
    scale_add(sum, 1.0f, four(parts + (i * 16 + r) * TILE + c));
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int q = 0; q < 4; ++q)
    if (r < count && c + q < width) here[(size_t)r * pitch + c + q] = values[q];
  __syncthreads();
}

// 32 x 32 entries on or below the diagonal, less the products of the tile's columns:
// an eighth of the sum for two warps, 4 x 4 entries a lane.
__device__ __noinline__ void subtract_corner(Block block, int place, int row,
                                             int column) {
  float* left = reinterpret_cast<float*>(raw);
  float* right = left + SUB * PITCH;
  float* parts = right + SUB * PITCH;
  const int thread = threadIdx.x, pitch = block.pitch, size = block.size;
  const float* columns = block.matrix + place;
  copy_rows<SUB, PITCH>(left, columns + (size_t)row * pitch, pitch, size - row, TILE);
  copy_rows<SUB, PITCH>(right, columns + (size_t)column * pitch, pitch, size - column,
                        TILE);
  float before[2];
  float* target[2];
  bool inside[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int at = row + thread / 32 + 16 * i, to = column + thread % 32;
    target[i] = block.matrix + (size_t)at * pitch + to;
    inside[i] = at < size && to <= at;
    before[i] = inside[i] ? __ldcg(target[i]) : 0.0f;
  }
  copied();
  const int slice = thread / 64, r = thread % 64 / 8, c = thread % 8;
  float sums[4][4] = {};
#pragma unroll
  for (int m = 16 * slice, i = 0; i < 4; ++i, m += 4) {
    float4 others[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) others[q] = four(right + (c + 8 * q) * PITCH + m);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      float4 v = four(left + (r + 8 * p) * PITCH + m);
#pragma unroll
      for (int q = 0; q < 4; ++q) sums[p][q] = dot(v, others[q], sums[p][q]);
    }
  }
#pragma unroll
  for (int p = 0; p < 4; ++p)
#pragma unroll
    for (int q = 0; q < 4; ++q)
      parts[(slice * SUB + r + 8 * p) * (SUB + 1) + c + 8 * q] = sums[p][q];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k)
      sum += parts[(k * SUB + thread / 32 + 16 * i) * (SUB + 1) + thread % 32];
    if (inside[i]) *target[i] = before[i] - sum;
  }
}

// 64 x 64 entries of what remains, less the products of the tile's columns.
__device__ __noinline__ void subtract_products(Block block, int place, int row,
                                               int column) {
  float* left = reinterpret_cast<float*>(raw);
  constexpr int SIDE = 64, ROWS = SIDE / 32, COLUMNS = SIDE / 16;
  float* right = left + SIDE * PITCH;
  const int behind = place + TILE, size = block.size;
  float *matrix = block.matrix, *turned = block.turned;
  const bool of_matrix = column >= behind;
  const int pitch = of_matrix ? block.pitch : size;
  const float* from = (of_matrix ? matrix : turned) + (size_t)column * pitch + place;
  copy_rows<SIDE, PITCH>(left, matrix + (size_t)row * block.pitch + place, block.pitch,
                         size - row, TILE);
  copy_rows<SIDE, PITCH>(right, from, pitch, size - column, TILE);
  const int r = threadIdx.x / 16, c = threadIdx.x % 16;
  float before[ROWS][COLUMNS];
  if (of_matrix) {
#pragma unroll
    for (int p = 0; p < ROWS; ++p)
#pragma unroll
      for (int q = 0; q < COLUMNS; ++q) {
        int at = row + r + 32 * p, to = column + c + 16 * q;
        bool inside = at < size && to <= at;
        before[p][q] = inside ? __ldcg(matrix + (size_t)at * pitch + to) : 0.0f;
      }
  }
  copied();
  float sums[ROWS][COLUMNS] = {};
#pragma unroll 4
  for (int m = 0; m < TILE; m += 4) {
    float4 others[COLUMNS];
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q)
      others[q] = four(right + (c + 16 * q) * PITCH + m);
#pragma unroll
    for (int p = 0; p < ROWS; ++p) {
      float4 v = four(left + (r + 32 * p) * PITCH + m);
#pragma unroll
      for (int q = 0; q < COLUMNS; ++q) sums[p][q] = dot(v, others[q], sums[p][q]);
    }
  }
  __syncthreads();
  if (of_matrix) {
#pragma unroll
    for (int p = 0; p < ROWS; ++p)
#pragma unroll
      for (int q = 0; q < COLUMNS; ++q) {
        int at = row + r + 32 * p, to = column + c + 16 * q;
        if (at < size && to <= at)
          matrix[(size_t)at * pitch + to] = before[p][q] - sums[p][q];
      }
    return;
  }
  // through shared memory, so that rows of the transpose are written
#pragma unroll
  for (int p = 0; p < ROWS; ++p)
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q)
      left[(c + 16 * q) * (SIDE + 1) + r + 32 * p] = sums[p][q];
  __syncthreads();
  const bool first = column >= place;  // nothing was there before
#pragma unroll
  for (int i = threadIdx.x; i < SIDE * SIDE; i += THREADS) {
    int to = i / SIDE, at = i % SIDE;
    float* target = turned + (size_t)(column + to) * size + row + at;
    if (row + at < size)
      *target = (first ? 0.0f : __ldcg(target)) - left[to * (SIDE + 1) + at];
  }
  __syncthreads();
}

// Those who wait for a counter see what those who arrived there had written.
__device__ __forceinline__ void arrive(int* counter) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(counter, 1);
  }
}

__device__ __forceinline__ void wait_for(int* counter, int goal) {
  if (threadIdx.x == 0) {
    int seen;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(seen)
                   : "l"(counter)
                   : "memory");
    } while (seen < goal);
    __threadfence();
  }
  __syncthreads();
}

__device__ __forceinline__ float as_tf32(float x) {
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

// A whole block by a grid that is there all at once. The first of it factorises tiles,
// the others do the rest of the products meanwhile. `state` is a failure, and two
// counters at zero. At last the transposed inverse is cut into TF32, as (high, low,
// high) below each other, if there is a place for it.
extern "C" __global__ void __launch_bounds__(THREADS)
factorise_block(float* matrix, float* turned, float* parts, int* state, int size,
                int pitch) {
  const Block block = {matrix, turned, size, pitch};
  const int own = blockIdx.x, members = gridDim.x;
  int *failure = state, *everyone = state + 1, *corner = state + 2;
  int met = 0, corners = 0;

  if (own == 0) factorise_tile(block, 0, failure);
  for (int place = 0;; place += TILE) {
    arrive(everyone);
    wait_for(everyone, met += members);
    const int behind = place + TILE, rows = max(size - behind, 0);
    const int groups = place / 16 + (rows + 15) / 16;
    for (int group = own; group < groups; group += members)
      divide_rows(block, place, group);
    if (rows == 0) break;
    arrive(everyone);
    wait_for(everyone, met += members);

    // the next tile on the diagonal first, its lower half in pieces of 32 x 32
    const int across = min((rows + 31) / 32, TILE / 32);
    const int pieces = across * (across + 1) / 2;
    corners += pieces;
    for (int i = own; i < pieces; i += members) {
      int row = 0;
      while ((row + 1) * (row + 2) / 2 <= i) ++row;
      int column = i - row * (row + 1) / 2;
      subtract_corner(block, place, behind + 32 * row, behind + 32 * column);
      arrive(corner);
    }
    if (own == 0) {
      wait_for(corner, corners);
      factorise_tile(block, behind, failure);
    }
    if (own > 0 || members == 1) {
      const int last = (size + 63) / 64, first = behind / 64;
      int unit = 0;
      for (int i = first; i < last; ++i)
        for (int j = 0; j <= i; ++j) {
          if (i < first + 2 && j >= first) continue;
          if (unit++ % max(members - 1, 1) == max(own - 1, 0))
            subtract_products(block, place, 64 * i, 64 * j);
        }
    }
  }

  arrive(everyone);
  wait_for(everyone, met += members);
  const size_t area = (size_t)size * size;
  for (int r = own; r < size; r += members) {
    if (parts == nullptr) {
      for (int c = threadIdx.x; c < r; c += THREADS)
        turned[(size_t)r * size + c] = 0.0f;
      continue;
    }
    for (int c = 4 * threadIdx.x; c < size; c += 4 * THREADS) {
      const size_t at = (size_t)r * size + c;
      float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
      if (c + 3 < r)
        *reinterpret_cast<float4*>(turned + at) = v;
      else
        v = __ldcg(reinterpret_cast<const float4*>(turned + at));
      float4 high = {as_tf32(v.x), as_tf32(v.y), as_tf32(v.z), as_tf32(v.w)};
      float4 low = {as_tf32(v.x - high.x), as_tf32(v.y - high.y),
                    as_tf32(v.z - high.z), as_tf32(v.w - high.w)};
      *reinterpret_cast<float4*>(parts + at) = high;
      *reinterpret_cast<float4*>(parts + at + area) = low;
      *reinterpret_cast<float4*>(parts + at + 2 * area) = high;
    }
  }
}

// --- solutions ------------------------------------------------------------------

constexpr int PANELS = 128, OUTPUTS = 4;

struct Inverses {
  const float* at[PANELS];  // transposed, one for each panel's diagonal block
};

__device__ __forceinline__ void sum_of_lanes(float (&sums)[OUTPUTS]) {
#pragma unroll
  for (int q = 0; q < OUTPUTS; ++q)
#pragma unroll
    for (int step = 16; step; step /= 2)
      sums[q] += __shfl_xor_sync(0xffffffffu, sums[q], step);
}

// Some values into shared memory, an output after the other.
__device__ __forceinline__ void stage(float* room, const float* from, int width,
                                      int outputs) {
  for (int i = threadIdx.x; i < width * outputs; i += THREADS)
    room[i % outputs * width + i / outputs] = __ldcg(from + i);
  __syncthreads();
}

// b becomes the solution of L L^T x = b, for a factor in panels, by a grid that is
// there all at once. `half` and `parts` are room for n outputs and for a panel's width
// of them for each member.
extern "C" __global__ void __launch_bounds__(THREADS)
solve_panels(const Inverses inverses, const float* panels, float* b, float* half,
             float* parts, int* counter, int n, int width, int outputs) {
  float* room = reinterpret_cast<float*>(raw);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int own = blockIdx.x, members = gridDim.x, count = (n + width - 1) / width;
  int met = 0;

  for (int j = 0; j < count; ++j) {
    const int place = j * width, across = min(width, n - place);
    const int rows = n - place - across;
    const float* panel = panels + (size_t)j * width * n -
                         (size_t)width * width * j * (j - 1) / 2;
    const float* turned = inverses.at[j];
    // the block's inverse times its part of b, eight rows at a time
    for (int first = 8 * own; first < across; first += 8 * members) {
      const int r = first + lane % 8;
      float sums[OUTPUTS] = {};
      if (r < across) {
#pragma unroll 8
        for (int c = 4 * warp + lane / 8; c <= r; c += 4 * WARPS) {
          float entry = turned[(size_t)c * across + r];
#pragma unroll
          for (int q = 0; q < OUTPUTS; ++q)
            if (q < outputs)
              sums[q] = fmaf(entry, __ldcg(b + (place + c) * outputs + q), sums[q]);
        }
      }
#pragma unroll
      for (int q = 0; q < OUTPUTS; ++q) {
        sums[q] += __shfl_xor_sync(0xffffffffu, sums[q], 16);
        sums[q] += __shfl_xor_sync(0xffffffffu, sums[q], 8);
        if (lane < 8) room[(warp * 8 + lane) * OUTPUTS + q] = sums[q];
      }
      __syncthreads();
      const int row = thread / outputs, q = thread % outputs;
      if (row < 8 && first + row < across) {
        float sum = 0.0f;
        for (int i = 0; i < WARPS; ++i) sum += room[(i * 8 + row) * OUTPUTS + q];
        half[(place + first + row) * outputs + q] = sum;
      }
      __syncthreads();
    }
    arrive(counter);
    wait_for(counter, met += members);
    if (rows == 0) break;
    // what is below it, times that: a row for each warp
    stage(room, half + place * outputs, width, outputs);
    for (int row = own * WARPS + warp; row < rows; row += members * WARPS) {
      const float* from = panel + (size_t)(width + row) * width;
      float sums[OUTPUTS] = {};
#pragma unroll 8
      for (int c = 4 * lane; c < width; c += 128) {
        float4 v = four(from + c);
#pragma unroll
        for (int q = 0; q < OUTPUTS; ++q)
          if (q < outputs) sums[q] = dot(v, four(room + q * width + c), sums[q]);
      }
      sum_of_lanes(sums);
      float* at = b + (place + width + row) * outputs;
#pragma unroll
      for (int q = 0; q < OUTPUTS; ++q)
        if (lane == q && q < outputs) at[q] = __ldcg(at + q) - sums[q];
    }
    arrive(counter);
    wait_for(counter, met += members);
  }

  for (int j = count - 1; j >= 0; --j) {
    const int place = j * width, across = min(width, n - place);
    const int rows = n - place - across;
    const float* panel = panels + (size_t)j * width * n -
                         (size_t)width * width * j * (j - 1) / 2;
    if (rows) {  // what is below, transposed, times the solution so far
      const int c = 2 * thread;
      float sums[2][OUTPUTS] = {};
      if (c < width) {
#pragma unroll 8
        for (int row = own; row < rows; row += members) {
          const float* from = panel + (size_t)(width + row) * width + c;
          float2 v = *reinterpret_cast<const float2*>(from);
#pragma unroll
          for (int q = 0; q < OUTPUTS; ++q)
            if (q < outputs) {
              float x = __ldcg(b + (place + width + row) * outputs + q);
              sums[0][q] = fmaf(v.x, x, sums[0][q]);
              sums[1][q] = fmaf(v.y, x, sums[1][q]);
            }
        }
#pragma unroll
        for (int q = 0; q < OUTPUTS; ++q)
          if (q < outputs) {
            float* at = parts + ((size_t)own * width + c) * outputs + q;
            at[0] = sums[0][q], at[outputs] = sums[1][q];
          }
      }
      arrive(counter);
      wait_for(counter, met += members);
      for (int i = 32 * own; i < width * outputs; i += 32 * members) {
        float sum = 0.0f;
        if (i + lane < width * outputs) {
#pragma unroll 4
          for (int from = warp; from < members; from += WARPS)
            sum += __ldcg(parts + (size_t)from * width * outputs + i + lane);
        }
        room[warp * 32 + lane] = sum;
        __syncthreads();
        if (warp == 0 && i + lane < width * outputs) {
          for (int from = 1; from < WARPS; ++from) sum += room[from * 32 + lane];
          float* at = half + place * outputs + i + lane;
          *at = __ldcg(at) - sum;
        }
        __syncthreads();
      }
      arrive(counter);
      wait_for(counter, met += members);
    }
    // the inverse, transposed, times that: a row for each warp
    const float* turned = inverses.at[j];
    if (own * WARPS < across) {
      stage(room, half + place * outputs, across, outputs);
      for (int c = own * WARPS + warp; c < across; c += members * WARPS) {
        float sums[OUTPUTS] = {};
#pragma unroll 8
        for (int r = (c & ~31) + lane; r < across; r += 32) {
          float entry = turned[(size_t)c * across + r];
#pragma unroll
          for (int q = 0; q < OUTPUTS; ++q)
            if (q < outputs) sums[q] = fmaf(entry, room[q * across + r], sums[q]);
        }
        sum_of_lanes(sums);
#pragma unroll
        for (int q = 0; q < OUTPUTS; ++q)
          if (lane == q && q < outputs) b[(place + c) * outputs + q] = sums[q];
      }
    }
    arrive(counter);
    wait_for(counter, met += members);
  }
}

__device__ __forceinline__ half_bits to_half(float x) {
  half_bits bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ float of_half(half_bits bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

__device__ __forceinline__ uint2 packed(const half_bits* x) {
  uint2 pair = {x[0] | (word)x[1] << 16, x[2] | (word)x[3] << 16};
  return pair;
}

// x = (high + low / 2^11) / scale, five times beside each other: high over 2^11, high,
// low times 2^11, high, high over 2^11; so that three neighbours of the one end and
// three of the other have the same products, each of them at the scale's square.
extern "C" __global__ void __launch_bounds__(THREADS)
cut_into_halves(const float* from, half_bits* to, int rows, int width, int pitch,
                float scale) {
  const int quarter = width / 4;
  const size_t count = (size_t)rows * quarter;
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count;
       i += (size_t)gridDim.x * THREADS) {
    size_t r = i / quarter;
    int c = 4 * (int)(i - r * quarter);
    float4 v = four(from + r * pitch + c);
    float x[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
    half_bits high[4], low[4], less[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      high[q] = to_half(x[q]);
      float kept = of_half(high[q]);
      low[q] = to_half((x[q] - kept) * 2048.0f);
      less[q] = to_half(kept * (1.0f / 2048.0f));
    }
    half_bits* at = to + r * 5 * width + c;
    *reinterpret_cast<uint2*>(at) = packed(less);
    *reinterpret_cast<uint2*>(at + width) = packed(high);
    *reinterpret_cast<uint2*>(at + 2 * width) = packed(low);
    *reinterpret_cast<uint2*>(at + 3 * width) = packed(high);
    *reinterpret_cast<uint2*>(at + 4 * width) = packed(less);
  }
}

// x = high + low in TF32, beside each other as (high, high, low).
extern "C" __global__ void __launch_bounds__(THREADS)
cut_into_tf32(const float* from, float* to, int rows, int width, int pitch) {
  const int quarter = width / 4;
  const size_t count = (size_t)rows * quarter;
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count;
       i += (size_t)gridDim.x * THREADS) {
    size_t r = i / quarter;
    int c = 4 * (int)(i - r * quarter);
    float4 v = four(from + r * pitch + c);
    float4 high = {as_tf32(v.x), as_tf32(v.y), as_tf32(v.z), as_tf32(v.w)};
    float4 low = {as_tf32(v.x - high.x), as_tf32(v.y - high.y), as_tf32(v.z - high.z),
                  as_tf32(v.w - high.w)};
    float* at = to + r * 3 * width + c;
    *reinterpret_cast<float4*>(at) = high;
    *reinterpret_cast<float4*>(at + width) = high;
    *reinterpret_cast<float4*>(at + 2 * width) = low;
  }
}

// --- kernel values and slopes -----------------------------------------------------

// Squared distances as they came out of a product of both sides of some points. Of
// every point there are its image times -2, its square and a one, and itself, a one and
// its square.
struct Distances {
  float* squared;
  const float *own_left, *own_right, *other_left, *other_right;
  int rows, columns, width, pitch, own_pitch, other_pitch;
  float share;
};

// Overwrite them by what a function of one of them gives. Of points that are near each
// other no digits are left of the product: there it is computed from differences.
// Several rows for each block, so that a column's square is read once for all of them.
template <typename Function>
__device__ __forceinline__ void map_all(Distances of, Function function) {
  constexpr int ROWS = 8;
  const int width = of.width;
  for (int first = blockIdx.x * ROWS; first < of.rows; first += gridDim.x * ROWS) {
    const float* images = of.own_left + (size_t)first * of.own_pitch;
    const float* points = of.own_right + (size_t)first * of.own_pitch;
    const int count = min(ROWS, of.rows - first);
    for (int j = threadIdx.x; j < of.columns; j += THREADS) {
      const float* center = of.other_right + (size_t)j * of.other_pitch;
      const float square = center[width + 1];
      float* at = of.squared + (size_t)first * of.pitch + j;
      float values[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (r < count) values[r] = at[(size_t)r * of.pitch];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (r >= count) break;
        const float* image = images + (size_t)r * of.own_pitch;
        if (values[r] <= of.share * (image[width] + square)) {
          const float* point = points + (size_t)r * of.own_pitch;
          const float* seen = of.other_left + (size_t)j * of.other_pitch;
          float sum = 0;
          for (int p = 0; p < width; ++p)
            sum = fmaf(point[p] - center[p], seen[p] - image[p], sum);
          values[r] = 0.5f * sum;
        }
        at[(size_t)r * of.pitch] = function(values[r]);
      }
    }
  }
}

struct Same {
  __device__ float operator()(float u) const { return u; }
};

// Below zero is rounding; NaN stays what it is.
struct Value {
  __device__ float operator()(float u) const { return expf(-sqrtf(u < 0.0f ? 0.0f : u)); }
};

struct Slope {
  __device__ float operator()(float u) const {
    const float r = sqrtf(u);
    return u <= 0.0f ? 0.0f : expf(-r) / r;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) mend_near(Distances of) {
  map_all(of, Same());
}

extern "C" __global__ void __launch_bounds__(THREADS) laplace_values(Distances of) {
  map_all(of, Value());
}

extern "C" __global__ void __launch_bounds__(THREADS) laplace_slopes(Distances of) {
  map_all(of, Slope());
}
